"""`StandIn`: starts the stand-in for AWS as a process of its own, and is a test's way to its faults and its call log.

with StandIn() as aws:
    aws.capacity(zone="us-east-1a", instance_type="p5.48xlarge", machines=1)
    boto3.client("ec2", **aws.boto)         # or: subprocess.run(..., env={**os.environ, **aws.env})
    assert aws.operations("RunInstances")[0]["params"]["MinCount"] == 1
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[3]
ENDING_S = 10.0


class StandInError(Exception):
    """The stand-in refused what a test asked it for, or isn't there any more."""


class StandIn:
    """One account, empty at first. `reset` makes it so again, in a fraction of the time that a new one takes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stand_ins.aws.server"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "AWS_ACCESS_KEY_ID": "testing"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise StandInError(f"the server ended with {self._process.wait()} before it listened")
        self.pid = self._process.pid
        self.endpoint = f"http://127.0.0.1:{port}"

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server; it ends by itself when we are killed, because its standard input is then closed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def env(self) -> dict[str, str]:
        """What boto3 and the plug-in need in the environment, and nothing of the user's own."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent/config",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
        }

    @property
    def boto(self) -> dict[str, str]:
        """Keyword arguments of `boto3.client` for tests that don't change the environment."""
        return {
            "endpoint_url": self.endpoint,
            "region_name": "us-east-1",
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
        }

    # -- faults -----------------------------------------------------------------------------------------------------

    def capacity(self, *, zone: str, instance_type: str, machines: int) -> None:
        """So many machines are left there; RunInstances beyond them is InsufficientInstanceCapacity (status 500)."""
        self._set("capacity", zone=zone, instance_type=instance_type, machines=machines)

    def offer_only_in(self, instance_type: str, zones: list[str]) -> None:
        """Elsewhere the type isn't offered, and RunInstances there is Unsupported."""
        self._set("offering", instance_type=instance_type, zones=zones)

    def quota(self, code: str, vcpus: float) -> None:
        """The quota in vCPUs: RunInstances beyond it is VcpuLimitExceeded or MaxSpotInstanceCountExceeded."""
        self._set("quota", code=code, vcpus=vcpus)

    def price(self, instance_type: str, usd_per_hour: float, *, region: str = "us-east-1") -> None:
        """On demand, for pricing's GetProducts."""
        self._set("price", instance_type=instance_type, region=region, usd_per_hour=usd_per_hour)

    def spot_price(self, instance_type: str, usd_per_hour: float, *, zone: str) -> None:
        self._set("spot_price", instance_type=instance_type, zone=zone, usd_per_hour=usd_per_hour)

    def offer_block(self, offering_id: str, *, instance_type: str, count: int, zone: str, hours: int) -> None:
        """A capacity block that can be bought."""
        self._set(
            "block_offering",
            CapacityBlockOfferingId=offering_id,
            InstanceType=instance_type,
            InstanceCount=count,
            AvailabilityZone=zone,
            CapacityBlockDurationHours=hours,
            UpfrontFee="100.00",
        )

    def fail(self, operation: str, code: str, *, times: int = 1, status: int = 400, message: str = "as asked") -> None:
        """The next `times` calls of `operation` ("*": of any) are refused without being executed."""
        self._set("failure", operation=operation, code=code, message=message, times=times, status=status)

    def clear_faults(self) -> None:
        """End what `fail` and its kin, `expire_credentials`, `hide_after` and the fates of instances have left over."""
        self._set("no_faults")

    def throttle(self, operation: str, times: int) -> None:
        self.fail(operation, "RequestLimitExceeded", times=times, status=503, message="Request limit exceeded.")

    def server_error(self, operation: str, times: int) -> None:
        self.fail(operation, "InternalError", times=times, status=500, message="An internal error has occurred")

    def dependency_violation(self, operation: str, times: int) -> None:
        self.fail(operation, "DependencyViolation", times=times, message="resource has a dependent object")

    def expire_credentials(self, *, after_calls: int, code: str = "ExpiredToken") -> None:
        """All calls after the next `after_calls` are refused; EC2 also says RequestExpired."""
        self._set("expired", after_calls=after_calls, code=code)

    def hide_after(self, operation: str, *, describes: int) -> None:
        """What `operation` creates from now on is missing from the next `describes` Describe answers."""
        self._set("invisible", operation=operation, describes=describes)

    def terminate_slowly(self, *, describes: int, instances: int = 1) -> None:
        """The next instances to be terminated stay "shutting-down" for so many DescribeInstances."""
        self._set("slow_termination", describes=describes, instances=instances)

    def launch_stillborn(self, reason: str, *, instances: int = 1) -> None:
        """The next instances are terminated at once with this StateReason, though RunInstances succeeded."""
        self._set("stillborn", reason=reason, instances=instances)

    def hang(self, operation: str, *, when: Literal["before", "after"], nth: int = 1) -> None:
        """The nth call from now blocks before it is executed, or when it was and before it is answered."""
        self._set("hang", operation=operation, when=when, nth=nth)

    def wait_until_hanging(self, operation: str, *, timeout_s: float = 60) -> None:
        """Return when a call of `operation` hangs. Raises StandInError after `timeout_s`."""
        if not self._get(f"hanging?operation={operation}&timeout_s={timeout_s}", timeout_s=timeout_s + 10):
            raise StandInError(f"no call of {operation} hung within {timeout_s} s")

    def release(self, *, execute: bool = True) -> int:
        """Let all hanging calls go; `execute=False` drops those that hang before. Returns how many there were."""
        return int(self._post("release", {"execute": execute}))

    # -- what happens to machines ---------------------------------------------------------------------------------

    def guest_shutdown(self, instance_id: str) -> str:
        """`shutdown -h now` inside; returns the state that it leads to."""
        return str(self._post("guest_shutdown", {"instance_id": instance_id}))

    def interrupt(self, instance_id: str, reason: str = "Server.SpotInstanceTermination") -> None:
        """AWS takes the machine away."""
        self._post("interrupt", {"instance_id": instance_id, "reason": reason})

    # -- what was done -----------------------------------------------------------------------------------------------

    def calls(self) -> list[dict[str, Any]]:
        """The call log: number, service, operation, region, params, time_s, outcome ("200" or an error code)."""
        return list(self._get("calls"))

    def operations(self, *names: str) -> list[dict[str, Any]]:
        """The calls of these operations, in order."""
        return [call for call in self.calls() if call["operation"] in names]

    def state(self) -> dict[str, Any]:
        return dict(self._get("state"))

    def resources(self) -> dict[str, list[str]]:
        """Kind -> ids of all that exists and isn't there by default; terminated instances don't count."""
        return dict(self.state()["resources"])

    def reset(self) -> None:
        """An empty account without faults; calls that hang are dropped."""
        self._post("reset", {})

    # -- how ---------------------------------------------------------------------------------------------------------

    def _set(self, name: str, **values: Any) -> None:
        self._post("faults", {"set": name, **values})

    def _get(self, path: str, *, timeout_s: float = 30) -> Any:
        return self._ask(path, None, timeout_s)

    def _post(self, path: str, wish: dict[str, Any]) -> Any:
        return self._ask(path, json.dumps(wish).encode(), 30)

    def _ask(self, path: str, body: bytes | None, timeout_s: float) -> Any:
        url = f"{self.endpoint}/_stand_in/{path}"
        try:
            with urllib.request.urlopen(url, body, timeout=timeout_s) as answer:  # noqa: S310  (loopback)
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise StandInError(error.read().decode()) from error
