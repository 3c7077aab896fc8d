"""`StandIn`: a running double of GCP as a test sees it. Orders go over its control paths, so any process may give them.

    gcp.env                                   what a program needs in its environment to use it
    gcp.set_capacity("us-central1-a", "g2-standard-4", machines=1)
    gcp.hang("compute.instances.insert", when="after"); gcp.wait_until_hanging("compute.instances.insert")
    gcp.leftovers()                           paths of all that is still there

Methods are called by their discovery id, "compute.instances.insert"; patterns such as "compute.*" are taken.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.stand_ins.gcp import catalogue
from tests.stand_ins.gcp.emulator import HOST, Emulator

ROOT = Path(__file__).resolve().parents[3]
PROJECT = catalogue.PROJECT
EMAIL = f"tester@{PROJECT}.iam.gserviceaccount.com"


@dataclass(frozen=True)
class Key:
    """A service account's key: made once a session, for it takes a moment."""

    private: str
    public: str

    @classmethod
    def new(cls) -> Key:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return cls(private.decode(), public.decode())


class StandIn:
    """One emulator in this process, with a key file in `folder`."""

    def __init__(self, folder: Path, key: Key) -> None:
        self._emulator = Emulator()
        self._emulator.start()
        self.root = f"http://{HOST}:{self._emulator.port}"
        self._folder = folder
        self._key = key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "nothing").mkdir(exist_ok=True)
        self.key_file = folder / "service-account.json"
        self.key_file.write_text(
            json.dumps(
                {
                    "type": "service_account",
                    "project_id": PROJECT,
                    "private_key_id": "stand-in",
                    "private_key": key.private,
                    "client_email": EMAIL,
                    "client_id": "1",
                    "token_uri": f"{self.root}/token",
                }
            )
        )
        self._tell("register_key", public_key=key.public)

    def close(self) -> None:
        self._emulator.stop()

    @property
    def env(self) -> Mapping[str, str]:
        """Endpoints by the variables of Google's Terraform provider, and by theirs alike where it has none."""
        plain = f"{self.root}/v1/"
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.key_file),
            "GOOGLE_PROJECT": PROJECT,
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_CONFIG": str(self._folder / "nothing"),
            "NO_GCE_CHECK": "true",
            "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": f"{self.root}/compute/v1/",
            "GOOGLE_STORAGE_CUSTOM_ENDPOINT": f"{self.root}/storage/v1/",
            "GOOGLE_FILESTORE_CUSTOM_ENDPOINT": plain,
            "GOOGLE_CLOUD_QUOTAS_CUSTOM_ENDPOINT": plain,
            "GOOGLE_CLOUD_BILLING_CUSTOM_ENDPOINT": plain,
            "GOOGLE_SERVICE_USAGE_CUSTOM_ENDPOINT": plain,
            "GOOGLE_RESOURCE_MANAGER_CUSTOM_ENDPOINT": plain,
            "GOOGLE_IAM_CUSTOM_ENDPOINT": plain,
        }

    # -- looking ----------------------------------------------------------------------------------------------------

    def calls(self, method: str | None = None) -> list[dict[str, Any]]:
        """The log: number, method, arguments, query, body, outcome (HTTP status, "dropped", None while it hangs)."""
        calls: list[dict[str, Any]] = self._tell("calls")
        return [call for call in calls if method in (None, call["method"])]

    def leftovers(self) -> list[str]:
        return list(self._tell("leftovers"))

    def resource(self, path: str) -> dict[str, Any]:
        """A compute resource by "zones/us-central1-a/instances/x", without counting as a read; KeyError if gone."""
        found: dict[str, Any] = self._tell("summary")["resources"][f"projects/{PROJECT}/{path}"]
        return found

    # -- capacity and quotas ----------------------------------------------------------------------------------------

    def set_capacity(
        self, zone: str, machine_type: str, *, machines: int, code: str = "ZONE_RESOURCE_POOL_EXHAUSTED"
    ) -> None:
        """So many more machines start; then operations end with `code`. A machine that ends gives its place back."""
        self._tell("capacity", zone=zone, machine_type=machine_type, machines=machines, code=code)

    def offer(self, machine_type: str, *, zones: list[str]) -> None:
        """The machine type is in these zones only: elsewhere not listed, and refused at once."""
        self._tell("offer", machine_type=machine_type, zones=zones)

    def refuse_as_unsupported(self, zone: str, machine_type: str) -> None:
        """Listed, but the operation ends with UNSUPPORTED_OPERATION."""
        self._tell("unsupported", zone=zone, machine_type=machine_type)

    def set_quota(self, metric: str, limit: float, *, region: str = "") -> None:
        """A region's metric, a project's (no region), or "family/NVIDIA_H100" and "preemptible_family/NVIDIA_H200"."""
        self._tell("quota", metric=metric, region=region, limit=limit)

    # -- refusals ---------------------------------------------------------------------------------------------------

    def fail(
        self,
        method: str,
        *,
        code: int = 503,
        reason: str = "backendError",
        message: str = "Backend Error",
        times: int | None = 1,
        after: int = 0,
    ) -> None:
        """Calls are refused: `times` of them (None: all), after `after` that go well. 500 and 503 are this."""
        self._tell("error", method=method, code=code, reason=reason, message=message, times=times, skip=after)

    def throttle(self, method: str, *, times: int = 1, code: Literal[403, 429] = 403) -> None:
        message = "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service."
        self.fail(method, code=code, reason="rateLimitExceeded", message=message, times=times)

    def deny(self, method: str = "*", *, permission: str = "compute.instances.create") -> None:
        message = f"Required '{permission}' permission for 'projects/{PROJECT}'"
        self.fail(method, code=403, reason="forbidden", message=message, times=None)

    def clear_failures(self) -> None:
        """Forget what `fail`, `throttle`, `deny`, `spoil` and `keep_in_use` ordered."""
        self._tell("clear")

    def switch_api(self, name: str, *, on: bool) -> None:
        """`name` as in "compute", "file", "cloudquotas": off, its calls answer 403 accessNotConfigured."""
        self._tell("api", name=name, on=on)

    def expire_tokens(self, *, after_calls: int = 0) -> None:
        """After so many calls the tokens of then are refused (401) once and for all; a new one is good."""
        self._tell("expire_tokens", after_calls=after_calls)

    def revoke_key(self, *, after_calls: int = 0) -> None:
        """After so many calls every call gets 401 and /token gives no new token (invalid_grant)."""
        self._tell("revoke_key", after_calls=after_calls)

    def spoil(self, method: str, how: Literal["malformed", "empty"], *, times: int = 1) -> None:
        """The call is executed, but the body of its answer is broken off, or missing."""
        self._tell("plan", method=method, kind=how, times=times)

    def keep_in_use(self, method: str, *, times: int | None = 1) -> None:
        """Deletions ("compute.networks.delete") are refused with resourceInUseByAnotherResource."""
        self._tell("plan", method=method, kind="in_use", times=times)

    # -- time and order ---------------------------------------------------------------------------------------------

    def hide_new(self, method: str, *, reads: int, times: int = 1) -> None:
        """What the next `times` inserts make is missing from get and list for `reads` looks each."""
        self._tell("hide", method=method, reads=reads, times=times)

    def stop_slowly(self, name: str = "*", *, reads: int, times: int = 1) -> None:
        """The next instances to be deleted stay STOPPING for `reads` looks at them or their operation."""
        self._tell("slow_stop", name=name, reads=reads, times=times)

    def operations_take(self, reads: int) -> None:
        """Operations are done at the n-th look at them or at their target (1 is the default)."""
        self._tell("operations_take", reads=reads)

    def let_time_pass(self, seconds: float) -> None:
        """All operations end, and instances whose maxRunDuration or terminationTime is over stop or are deleted."""
        self._tell("let_time_pass", seconds=seconds)

    def preempt(self, zone: str, name: str) -> None:
        self._tell("preempt", zone=zone, name=name)

    def remove(self, path: str) -> None:
        """Somebody else deletes "zones/us-central1-a/instances/x"."""
        self._tell("remove", path=f"projects/{PROJECT}/{path}")

    def hang(self, method: str, *, when: Literal["before", "after"], nth: int = 1) -> None:
        """The nth call blocks before it is executed, or before it is answered, until `release`."""
        self._tell("hang", method=method, when=when, nth=nth)

    def wait_until_hanging(self, method: str, *, timeout_s: float = 60) -> None:
        if not self._tell("wait_until_hanging", method=method, timeout_s=timeout_s):
            raise TimeoutError(f"no call of {method} hangs after {timeout_s} s")

    def release(self, *, execute: bool = True) -> int:
        """Let go what hangs; execute=False drops the connections, and with them the calls that hang before."""
        return int(self._tell("release", execute=execute))

    # -- what machines would do themselves --------------------------------------------------------------------------

    def publish_guest_attributes(
        self, zone: str, name: str, values: dict[str, str], *, namespace: str = "hostkeys"
    ) -> None:
        """As the guest agent does after boot; readable only with enable-guest-attributes=TRUE."""
        self._tell("guest_attributes", zone=zone, name=name, namespace=namespace, values=values)

    def next_external_addresses(self, *addresses: str) -> None:
        """Used for the next external addresses, reserved or ephemeral, in this order."""
        self._tell("external_addresses", addresses=list(addresses))

    def put_object(self, bucket: str, name: str) -> None:
        """So that the bucket isn't empty."""
        self._tell("put_object", bucket=bucket, name=name)

    def reset(self) -> None:
        """An empty project without faults; tokens given out are no longer good."""
        self._tell("reset")

    def _tell(self, name: str, /, **arguments: Any) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own loopback port
            f"{self.root}/_stand_in/{name}", data=json.dumps(arguments).encode(), method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise ValueError(f"{name}: {json.loads(error.read())['error']}") from None
