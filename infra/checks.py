"""What the clouds' plans and preflights refuse in one way, one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from infra.errors import AccessError, InfraError

if TYPE_CHECKING:
    from infra.gpus import MachineType
    from infra.providers.base import Deployment
    from infra.spec import ClusterSpec

_TOLD_IDS = 4


def limits(spec: ClusterSpec, machine: MachineType | None, *, most_nodes: int, provider: str) -> list[str]:
    """What is wrong in the stack file whatever the cloud; each begins with its key."""
    found = []
    if six := [network for network in spec.ssh_from or () if ":" in network]:
        found.append(f"ssh_from has {', '.join(six)}, and the cluster's network has IPv4 only: write IPv4 networks")
    if spec.nodes > most_nodes:
        found.append(f"nodes is {spec.nodes}: a gang on {provider} has at most {most_nodes}")
    if spec.reservation is not None and spec.market != "on-demand":
        found.append(f"market is {spec.market!r} beside a reservation: remove one of the two")
    if spec.processes_per_node is not None and machine is not None and spec.processes_per_node > machine.gpu_count:
        found.append(
            f"processes_per_node is {spec.processes_per_node}, and {machine.name} has {machine.gpu_count} GPU(s): "
            "remove the key to get a process a GPU"
        )
    return found


def asked(check: Callable[[], list[str]]) -> list[str]:
    """A check's own findings; where the provider refuses to tell, that is one."""
    try:
        return check()
    except AccessError as error:
        return [f"{error} (the preflight only reads)"]
    except InfraError as error:
        return [str(error)]


def strangers(deployment: Deployment, ids: Sequence[str], *, has: str) -> list[str]:
    """Of what another checkout made under the stack's name: `make destroy` would mistake one for the other."""
    if not ids:
        return []
    shown = ", ".join(ids[:_TOLD_IDS]) + (", …" if len(ids) > _TOLD_IDS else "")
    return [
        f"{has} of a stack {deployment.stack} that another checkout made ({shown}): take another stack name, or, "
        f"if they are yours and forgotten, `fab leftovers --stack {deployment.stack} --remove`"
    ]
