"""The resource types that the plug-in serves: where each is in Google's API, its body, what may change in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.stand_ins.gcp import bodies
from tests.stand_ins.gcp.bodies import Builder, Unserved, Values, plain
from tests.stand_ins.gcp.rest import NotFound, Rest
from tests.stand_ins.gcp.schemas import document


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A type of Compute's; the others override what is different."""

    collection: str
    scope: str
    """global, region, zone"""
    schema: str
    body: Builder = plain
    patched: frozenset[str] = frozenset()
    """Inputs that PATCH changes; every other change (but labels') replaces."""
    labelled: bool = False
    api: str = "compute"
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Outputs under another name than Google's."""
    longest_name: int = 63

    def fields(self) -> frozenset[str]:
        return frozenset(document(self.api)["schemas"][self.schema]["properties"])

    def place(self, inputs: Values) -> str:
        if self.scope == "global":
            return f"projects/{inputs['project']}/global"
        return f"projects/{inputs['project']}/{self.scope}s/{str(inputs[self.scope]).rpartition('/')[2]}"

    def create(self, rest: Rest, inputs: Values) -> str:
        rest.compute("POST", f"{self.place(inputs)}/{self.collection}", self.body(inputs, self.fields()))
        return f"{self.place(inputs)}/{self.collection}/{inputs['name']}"

    def read(self, rest: Rest, identity: str, inputs: Values) -> Values:
        del inputs
        return rest.get("compute", identity)

    def update(self, rest: Rest, identity: str, changed: set[str], inputs: Values) -> None:
        if changed & self.patched:
            body = self.body({k: v for k, v in inputs.items() if k in self.patched}, self.fields())
            rest.compute("PATCH", identity, body)
        if "labels" in changed:
            fingerprint = rest.get("compute", identity)["labelFingerprint"]
            labels = {"labels": inputs.get("labels") or {}, "labelFingerprint": fingerprint}
            rest.compute("POST", f"{identity}/setLabels", labels)

    def delete(self, rest: Rest, identity: str, inputs: Values) -> None:
        del inputs
        rest.compute("DELETE", identity)

    def outputs(self, found: Values, inputs: Values) -> Values:
        """What Google says, in the SDK's names."""
        del inputs
        told = {self.renamed.get(key, key): value for key, value in found.items()}
        return {**told, **({"effectiveLabels": found.get("labels", {})} if self.labelled else {})}


class Machine(Kind):
    def outputs(self, found: Values, inputs: Values) -> Values:
        told = super().outputs(found, inputs)
        nics = [
            {
                **given,
                "name": nic["name"],
                "network": nic["network"],
                "subnetwork": nic["subnetwork"],
                "networkIp": nic["networkIP"],
                "accessConfigs": [
                    {"natIp": each["natIP"], "networkTier": each["networkTier"]}
                    for each in nic.get("accessConfigs", [])
                ],
            }
            for given, nic in zip(inputs["networkInterfaces"], found["networkInterfaces"], strict=True)
        ]
        return {**told, "instanceId": found["id"], "currentStatus": found["status"], "networkInterfaces": nics}


class Nat(Kind):
    """A part of a router's body."""

    def _router(self, inputs: Values) -> str:
        return f"{self.place(inputs)}/routers/{str(inputs['router']).rpartition('/')[2]}"

    def _others(self, rest: Rest, inputs: Values) -> list[Any]:
        nats = rest.get("compute", self._router(inputs)).get("nats", [])
        return [nat for nat in nats if nat["name"] != inputs["name"]]

    def create(self, rest: Rest, inputs: Values) -> str:
        others = self._others(rest, inputs)
        rest.compute("PATCH", self._router(inputs), {"nats": [*others, self.body(inputs, self.fields())]})
        region, router = str(inputs["region"]).rpartition("/")[2], str(inputs["router"]).rpartition("/")[2]
        return f"{inputs['project']}/{region}/{router}/{inputs['name']}"

    def read(self, rest: Rest, identity: str, inputs: Values) -> Values:
        project, region, router, name = identity.split("/")
        del inputs
        nats = rest.get("compute", f"projects/{project}/regions/{region}/routers/{router}").get("nats", [])
        found = [nat for nat in nats if nat["name"] == name]
        if not found:
            raise NotFound(identity)
        return dict(found[0])

    def update(self, rest: Rest, identity: str, changed: set[str], inputs: Values) -> None:
        del identity, changed
        self.create(rest, inputs)

    def delete(self, rest: Rest, identity: str, inputs: Values) -> None:
        del identity
        rest.compute("PATCH", self._router(inputs), {"nats": self._others(rest, inputs)})


class Filestore(Kind):
    def create(self, rest: Rest, inputs: Values) -> str:
        parent = f"projects/{inputs['project']}/locations/{inputs.get('location') or inputs['zone']}"
        rest.long(
            "POST", f"{parent}/instances?instanceId={inputs['name']}", self.body(inputs, self.fields()), "filestore"
        )
        return f"{parent}/instances/{inputs['name']}"

    def read(self, rest: Rest, identity: str, inputs: Values) -> Values:
        del inputs
        return rest.get("filestore", identity)

    def delete(self, rest: Rest, identity: str, inputs: Values) -> None:
        del inputs
        rest.long("DELETE", identity, None, "filestore")

    def outputs(self, found: Values, inputs: Values) -> Values:
        networks = [
            {**given, "ipAddresses": n["ipAddresses"]}
            for given, n in zip(inputs["networks"], found["networks"], strict=True)
        ]
        return {"createTime": found["createTime"], "effectiveLabels": found.get("labels", {}), "networks": networks}


class Bucket(Kind):
    def create(self, rest: Rest, inputs: Values) -> str:
        rest.send("POST", "storage", f"b?project={inputs['project']}", self.body(inputs, self.fields()))
        return str(inputs["name"])

    def read(self, rest: Rest, identity: str, inputs: Values) -> Values:
        del inputs
        return rest.get("storage", f"b/{identity}")

    def update(self, rest: Rest, identity: str, changed: set[str], inputs: Values) -> None:
        if changed - {"forceDestroy"}:
            body = self.body({**inputs, "name": None}, self.fields())
            rest.send("PATCH", "storage", f"b/{identity}", {k: v for k, v in body.items() if k != "location"})

    def delete(self, rest: Rest, identity: str, inputs: Values) -> None:
        if inputs.get("forceDestroy"):
            for each in rest.get("storage", f"b/{identity}/o").get("items", []):
                rest.send("DELETE", "storage", f"b/{identity}/o/{each['name'].replace('/', '%2F')}", None)
        rest.send("DELETE", "storage", f"b/{identity}", None)

    def outputs(self, found: Values, inputs: Values) -> Values:
        del inputs
        told = {"url": f"gs://{found['name']}", "selfLink": f"https://www.googleapis.com/storage/v1/b/{found['name']}"}
        return {**told, "storageClass": found["storageClass"], "effectiveLabels": found.get("labels", {})}


class BucketMember(Kind):
    def _bindings(self, rest: Rest, inputs: Values) -> list[Any]:
        """The others' bindings."""
        if inputs.get("condition"):
            raise Unserved("the stand-in for GCP has no conditions on roles")
        bindings = rest.get("storage", f"b/{self._name(inputs)}/iam").get("bindings", [])
        for binding in bindings:
            if binding["role"] == inputs["role"]:
                binding["members"] = [member for member in binding["members"] if member != inputs["member"]]
        return [binding for binding in bindings if binding["members"]]

    def _name(self, inputs: Values) -> str:
        return str(inputs["bucket"]).removeprefix("b/")

    def create(self, rest: Rest, inputs: Values) -> str:
        ours = {"role": inputs["role"], "members": [inputs["member"]]}
        rest.send("PUT", "storage", f"b/{self._name(inputs)}/iam", {"bindings": [*self._bindings(rest, inputs), ours]})
        return f"b/{self._name(inputs)}/{inputs['role']}/{inputs['member']}"

    def read(self, rest: Rest, identity: str, inputs: Values) -> Values:
        bindings = rest.get("storage", f"b/{self._name(inputs)}/iam").get("bindings", [])
        if not any(b["role"] == inputs["role"] and inputs["member"] in b["members"] for b in bindings):
            raise NotFound(identity)
        return {"etag": "CAE="}

    def delete(self, rest: Rest, identity: str, inputs: Values) -> None:
        del identity
        rest.send("PUT", "storage", f"b/{self._name(inputs)}/iam", {"bindings": self._bindings(rest, inputs)})


class Account(Kind):
    def create(self, rest: Rest, inputs: Values) -> str:
        shown = {key: inputs[key] for key in ("displayName", "description") if inputs.get(key)}
        body = {"accountId": inputs["accountId"], "serviceAccount": shown}
        return str(rest.send("POST", "iam", f"projects/{inputs['project']}/serviceAccounts", body)["name"])

    def read(self, rest: Rest, identity: str, inputs: Values) -> Values:
        del inputs
        return rest.get("iam", identity)

    def delete(self, rest: Rest, identity: str, inputs: Values) -> None:
        del inputs
        rest.send("DELETE", "iam", identity, None)

    def outputs(self, found: Values, inputs: Values) -> Values:
        del inputs
        return {**found, "member": f"serviceAccount:{found['email']}"}


def _set(*names: str) -> frozenset[str]:
    return frozenset(names)


_RULE = _set("allows", "denies", "sourceRanges", "sourceTags", "targetTags", "priority", "disabled", "description")
_NAT = _set(
    "natIpAllocateOption", "natIps", "sourceSubnetworkIpRangesToNat", "subnetworks", "logConfig", "minPortsPerVm"
)
_BUCKET = _set("labels", "forceDestroy", "softDeletePolicy", "lifecycleRules", "publicAccessPrevention", "versioning")
KINDS: dict[str, Kind] = {
    "gcp:compute/network:Network": Kind(
        collection="networks",
        scope="global",
        schema="Network",
        body=bodies.network,
        renamed={"gatewayIPv4": "gatewayIpv4"},
    ),
    "gcp:compute/subnetwork:Subnetwork": Kind(
        collection="subnetworks", scope="region", schema="Subnetwork", patched=_set("privateIpGoogleAccess")
    ),
    "gcp:compute/firewall:Firewall": Kind(
        collection="firewalls", scope="global", schema="Firewall", body=bodies.firewall, patched=_RULE
    ),
    "gcp:compute/router:Router": Kind(collection="routers", scope="region", schema="Router"),
    "gcp:compute/routerNat:RouterNat": Nat(
        collection="nats", scope="region", schema="RouterNat", body=bodies.nat, patched=_NAT
    ),
    "gcp:compute/address:Address": Kind(collection="addresses", scope="region", schema="Address", labelled=True),
    "gcp:compute/resourcePolicy:ResourcePolicy": Kind(
        collection="resourcePolicies", scope="region", schema="ResourcePolicy"
    ),
    "gcp:compute/reservation:Reservation": Kind(
        collection="reservations", scope="zone", schema="Reservation", body=bodies.reservation
    ),
    "gcp:compute/disk:Disk": Kind(collection="disks", scope="zone", schema="Disk", body=bodies.disk, labelled=True),
    "gcp:compute/instance:Instance": Machine(
        collection="instances", scope="zone", schema="Instance", body=bodies.instance, labelled=True
    ),
    "gcp:filestore/instance:Instance": Filestore(
        collection="instances", scope="zone", schema="Instance", api="file", body=bodies.filestore, labelled=True
    ),
    "gcp:storage/bucket:Bucket": Bucket(
        collection="b",
        scope="global",
        schema="Bucket",
        api="storage",
        body=bodies.bucket,
        labelled=True,
        patched=_BUCKET,
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": BucketMember(
        collection="iam", scope="global", schema="Policy", api="storage"
    ),
    "gcp:serviceaccount/account:Account": Account(
        collection="serviceAccounts", scope="global", schema="ServiceAccount", api="iam", longest_name=30
    ),
}
# Labels are in the table of what may change for those that have setLabels.
