"""Provider `local`: each node is a real sshd on this machine, isolated as far as the system lets us.

    namespace mode   root on Linux: a network, pid, mount, uts and ipc namespace each, on a bridge of its own
    loopback mode    elsewhere: an unprivileged sshd each, on a free port of 127.0.0.1

What fails in a cloud should fail here: own address, own disk, own home, own processes, verified host keys, a lifetime.

    layout.py     names and folders          isolation.py  which mode, and the namespace's inside
    network.py    what the nodes share       nodes.py      one node: create, look, end
    sshd.py       keys and configuration     guard.py      the process that each node hangs on; ends it in time
    system.py     what the system says is there            resources.py  the thin Pulumi shell around it all
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from infra.cost import Line
from infra.providers.base import Deployment, Leftover
from infra.providers.local import network, nodes, preflight, system
from infra.providers.local.layout import Layout

if TYPE_CHECKING:
    import pulumi

    from infra.cluster import Price
    from infra.spec import ClusterSpec


class LocalProvider:
    """The four verbs for this machine."""

    keys = ("provider", "nodes", "processes_per_node", "shared_storage", "max_lifetime", "max_hourly_usd")

    def preflight(self, spec: ClusterSpec, deployment: Deployment) -> list[str]:
        return preflight.problems(spec, deployment)

    def create(self, spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
        from infra.providers.local import resources

        return resources.declare(spec, deployment, price)

    def price(self, spec: ClusterSpec) -> list[Line]:
        what = f"{spec.nodes} node(s) on this machine"
        return [Line(what=what, usd_per_hour=0.0, source="your own machine", as_of=datetime.now(UTC))]

    def leftovers(self, deployment: Deployment) -> list[Leftover]:
        return system.leftovers(Layout(deployment))

    def remove(self, leftover: Leftover, deployment: Deployment) -> None:
        layout = Layout(deployment)
        match leftover.kind:
            case "process" | "port":
                nodes.end_processes(layout)
            case "link":
                network.remove_link(leftover.id)
            case "namespace":
                network.remove_namespace(leftover.id)
            case "folder":
                network.remove_folder(layout.folder)


PROVIDER = LocalProvider()
