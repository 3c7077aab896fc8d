"""The gang as one dynamic resource of Pulumi: a thin shell around gang.py, for every cloud.

Pulumi's state holds GangVerbs by module and name, so destroy runs today's code: keep this path. The state holds no
secret: host keys and tokens are in the record (gang_record.py).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, cast

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from infra import gang_record, providers
from infra.cluster import node_names
from infra.dynamic import changed, one_sentence
from infra.first_boot import FirstBoot
from infra.gang import Gang as Machinery
from infra.gang import Machine, Machines
from infra.gang_record import Record
from infra.providers.base import Deployment
from infra.stack import project_root

_REQUEST = ("provider", "wish", "public_key", "lifetime_s")
"""The inputs that a machine is made from, wherever it is made."""
_OUTPUTS = ("zone", "created_at", "expires_at", "pinned", "machines")


class HasMachines(Protocol):
    """The optional power of a provider whose machines come as a gang."""

    def pin(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """What is fixed for the life of the gang, so that a later `up` doesn't change it: the image's id."""

    def machines(
        self, deployment: Deployment, *, wish: Mapping[str, Any], places: Mapping[str, Any], pinned: Mapping[str, Any]
    ) -> Machines:
        """The stack's machines. Plain values, all that a launch needs to know: the same in each zone, and by zone."""


def _deployment(props: Mapping[str, Any]) -> Deployment:
    """The root isn't in the state: it is the checkout that runs, so that a moved one still finds its own."""
    return Deployment(root=project_root(), stack=props["stack"], project=props["project"])


def _provider(props: Mapping[str, Any]) -> HasMachines:
    return cast(HasMachines, providers.load(props["provider"]))


def _record(props: Mapping[str, Any], *, begun: datetime) -> Record:
    return Record(_deployment(props).gang_folder, provider=props["provider"], now=begun)


def _machinery(props: Mapping[str, Any], *, pinned: Mapping[str, Any], record: Record) -> Machinery:
    lifetime_s = int(props["lifetime_s"])
    expires_at = record.created_at + timedelta(seconds=lifetime_s)

    def boot(name: str) -> FirstBoot:
        private, public = record.host_key(name)
        return FirstBoot(
            name=name,
            host_key=private,
            host_public_key=public,
            authorized_key=props["public_key"],
            expires_at=expires_at,
            lifetime_s=lifetime_s,
        )

    return Machinery(
        machines=_machines(props, pinned),
        record=record,
        names=node_names(int(props["nodes"])),
        what=props["what"],
        boot=boot,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )


def _machines(props: Mapping[str, Any], pinned: Mapping[str, Any]) -> Machines:
    return _provider(props).machines(_deployment(props), wish=props["wish"], places=props["places"], pinned=pinned)


def _outputs(
    props: Mapping[str, Any], machines: list[Machine], record: Record, pinned: Mapping[str, Any]
) -> dict[str, Any]:
    expires_at = record.created_at + timedelta(seconds=int(props["lifetime_s"]))
    return {
        **props,
        "zone": machines[0].zone,
        "created_at": record.created_at.isoformat(),
        "expires_at": expires_at.isoformat(),
        "pinned": dict(pinned),
        "machines": [
            {
                "name": machine.name,
                "id": machine.id,
                "private_address": machine.private_address,
                "public_address": machine.public_address,
                "public_port": machine.public_port,
                "host_key": record.host_key(machine.name)[1],
                "facts": machine.facts,
            }
            for machine in machines
        ],
    }


class GangVerbs(ResourceProvider):
    """Create, look, mend and end."""

    serialize_as_secret_always = False

    @one_sentence
    def create(self, props: dict[str, Any]) -> CreateResult:
        now = datetime.now(UTC)
        record = _record(props, begun=now)
        request = {key: props[key] for key in _REQUEST}
        if not _goes_on(record, props, request, now):
            if record.request and record.is_used:
                # A killed `up` asked for another kind, region or provider, or its time is over: with what it asked for.
                _machinery({**props, **record.request}, pinned=record.pinned, record=record).end_all()
            record.restart(now, request=request, pinned=_provider(props).pin(props["wish"]))
        machines = _machinery(props, pinned=record.pinned, record=record).raise_in_one_of(list(props["zones"]))
        return CreateResult(f"{props['stack']}-gang", _outputs(props, machines, record, record.pinned))

    @one_sentence
    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        replaces = changed(_olds, _news, "provider", "project", "stack", "public_key", "wish")
        place = {"place": _olds["places"].get(_olds["zone"])}
        replaces += changed(place, {"place": _news["places"].get(_olds["zone"])}, "place")
        if _news["zones_are_asked_for"] and _olds["zone"] not in _news["zones"]:
            replaces.append("zones")  # what the provider offers today is no reason: machines that run stay
        alive = _alive(_olds)
        if not alive or datetime.now(UTC) >= datetime.fromisoformat(_olds["expires_at"]):
            replaces.append("machines")  # another zone may have them, and a new lifetime begins
        known = {each["id"] for each in _olds["machines"]}
        # One that is missing is made anew; one that an `up` made and could not note down is taken in or ended.
        changes = bool(replaces) or known != alive or len(_olds["machines"]) != int(_news["nodes"])
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    @one_sentence
    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        alive = _alive(props)
        if not alive:
            return ReadResult("", {})
        return ReadResult(id_, {**props, "machines": [each for each in props["machines"] if each["id"] in alive]})

    @one_sentence
    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """More or fewer machines, or new ones for those that died; the others stay as they are."""
        # The lifetime, the key and the image that the living ones were started with hold for the new ones too.
        props = {**_news, "lifetime_s": _olds["lifetime_s"], "price": _news["price"]}
        record = _record(props, begun=datetime.fromisoformat(_olds["created_at"]))
        machinery = _machinery(props, pinned=_olds["pinned"], record=record)
        known_ids = {each["id"] for each in _olds["machines"]}
        living = [each for each in machinery.machines.find() if each.lives]
        taken = {each.name for each in living if each.id in known_ids}
        # Beyond what is asked for, or a second one of a name, which an `up` made and could not note down.
        surplus = [
            each.id
            for each in living
            if each.name not in machinery.names or (each.id not in known_ids and each.name in taken)
        ]
        machinery.machines.end(surplus)
        machines = machinery.mend(_olds["zone"])
        outputs = _outputs(props, machines, record, _olds["pinned"])
        # Those that live on have the key that they were started with, even if its file was lost meanwhile.
        known = {each["id"]: each["host_key"] for each in _olds["machines"]}
        for each in outputs["machines"]:
            each["host_key"] = known.get(each["id"], each["host_key"])
        return UpdateResult(outputs)

    @one_sentence
    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        machines = _machines(_props, _props["pinned"])
        ours = {machine.id for machine in machines.find() if machine.bills}
        machines.end(sorted(ours | {each["id"] for each in _props["machines"]}))
        # Where it was stays known until `make destroy` has looked there for what Pulumi never knew of.
        gang_record.ended(_deployment(_props).gang_folder)


def _goes_on(record: Record, props: Mapping[str, Any], request: Mapping[str, Any], now: datetime) -> bool:
    """Whether a killed `up` began the very gang that is asked for, and it is to be finished: same lifetime, image."""
    if record.request != request or now >= record.created_at + timedelta(seconds=int(props["lifetime_s"])):
        return False
    return record.is_open or any(each.lives for each in _machines(props, record.pinned).find())


def _alive(props: Mapping[str, Any]) -> set[str]:
    ids = [each["id"] for each in props["machines"]]
    return {machine.id for machine in _machines(props, props["pinned"]).find(ids) if machine.lives}


class Gang(Resource, module="trainstack", name="Gang"):
    """The machines of a cluster.

    Inputs: provider, project, stack, nodes, zones (in order), zones_are_asked_for (by the stack file), wish and
    places (the provider's own: what holds everywhere, and by zone), what (for messages), lifetime_s, public_key, price.
    A change of price or lifetime alone changes nothing on machines that run.
    """

    zone: pulumi.Output[str]
    created_at: pulumi.Output[str]
    expires_at: pulumi.Output[str]
    machines: pulumi.Output[list[dict[str, Any]]]
    price: pulumi.Output[dict[str, Any]]

    def __init__(self, name: str, inputs: Mapping[str, Any], *, opts: pulumi.ResourceOptions) -> None:
        super().__init__(GangVerbs(), name, {**inputs, **dict.fromkeys(_OUTPUTS)}, opts)
