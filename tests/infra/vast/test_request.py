"""What a create carries: a node's variables in parts that Vast.ai takes, and a start that makes a node of them."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra import ssh_keys
from infra.gang import Order
from infra.providers.base import Deployment
from infra.providers.local.network import run
from infra.providers.vast import plan, request
from infra.providers.vast.api import Offer, Vast
from tests.infra.ordering import boot
from tests.infra.vast.asking import machines, wish
from tests.stand_ins import containers
from tests.stand_ins.containers import Containers
from tests.stand_ins.vast.server import KEY, StandIn

needs_namespaces = pytest.mark.skipif(not containers.are_possible(), reason="needs root and network namespaces")


def real_order(folder: Path, *, lifetime_s: int = 3600) -> Order:
    """With keys that sshd takes."""
    user, public = (ssh_keys.make_pair(folder / name, comment=name) for name in ("user", "host"))
    made = boot(
        now=datetime.now(UTC), lifetime_s=lifetime_s, host_key=(folder / "host").read_text(), authorized_key=user
    )
    assert public.startswith("ssh-ed25519 ")
    return Order(boot=made, rank=0, zone="anywhere", token="0" * 32)


def test_the_variables_come_in_parts_within_the_limits(tmp_path: Path) -> None:
    order = real_order(tmp_path)
    told = request.environment(order, url="https://console.vast.ai")
    assert max(len(name) + len(value) for name, value in told.items()) <= 256
    assert sum(len(name) + len(value) for name, value in told.items()) <= 32768
    assert len(request.START) + len("bash-c") <= 4096
    assert order.boot.host_key not in repr(told)


@needs_namespaces
def test_the_start_makes_a_node_that_shows_our_host_key(
    cloud: StandIn, client: Vast, mine: Deployment, tmp_path: Path
) -> None:
    order = real_order(tmp_path)
    cloud.offer()
    with Containers() as network:

        def start(id_: str, asked: dict[str, Any]) -> tuple[str, int]:
            flag, command = asked["args"]
            assert (asked["onstart"], flag) == ("bash", "-c")
            container = network.start(id_, command, variables_of(asked))
            container.await_ssh()
            return container.address, 22

        cloud.on_start, cloud.on_end = start, network.end
        ours = machines(client, mine)
        id_ = ours.launch(order)
        (machine,) = [each for _ in range(3) for each in ours.find() if each.state == "running"][:1]
        shown = run(["ssh-keyscan", "-t", "ed25519", machine.public_address])
        assert (tmp_path / "host.pub").read_text().split()[1] in shown
        ours.end([id_])
    assert cloud.billing() == []


@needs_namespaces
def test_at_its_deadline_the_container_destroys_itself_with_its_own_key(mine: Deployment, tmp_path: Path) -> None:
    order = real_order(tmp_path, lifetime_s=-1)
    with Containers() as network, StandIn(address=network.host) as cloud:
        (offer,) = plan.quotes([Offer.model_validate(cloud.offers[cloud.offer()])], wish())
        body = request.body(order, offer, wish(), mine, url=cloud.url)
        asked = json.dumps(body).encode()
        status, made = cloud.perform("PUT", f"/api/v0/asks/{offer.offer}/", {"Authorization": f"Bearer {KEY}"}, asked)
        assert status == 200
        id_ = str(made["new_contract"])
        ended = threading.Event()
        cloud.on_end = lambda _: ended.set()
        cloud.ends = 0
        own = {"CONTAINER_ID": id_, "CONTAINER_API_KEY": made["instance_api_key"]}
        container = network.start(id_, request.START, {**variables_of(body), **own})
        assert ended.wait(timeout=60), container.said
        assert cloud.calls[0] == ("DELETE", f"/api/v0/instances/{id_}/")
        assert cloud.billing() == []
        assert made["instance_api_key"] not in container.said


def variables_of(body: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in body["env"].items() if not name.startswith("-p ")}
