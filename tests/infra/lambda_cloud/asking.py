"""What the tests of provider `lambda` ask for."""

from __future__ import annotations

from typing import Any

from infra.gang import Order
from infra.providers.base import Deployment
from infra.providers.lambda_cloud import access
from infra.providers.lambda_cloud.api import Lambda
from infra.providers.lambda_cloud.machines import LambdaMachines
from infra.spec import ClusterSpec, parse
from tests.infra import ordering
from tests.infra.ordering import PUBLIC_KEY

REGION = "us-east-1"


def asked(**keys: Any) -> ClusterSpec:
    usual: dict[str, Any] = {"provider": "lambda", "nodes": 2, "gpus": "H100:8", "ssh_from": ["203.0.113.7"]}
    wanted = {key: value for key, value in (usual | keys).items() if value is not None}
    return parse(wanted, file="stacks/Pulumi.lambda.yaml")


def order(name: str = "node-0", *, token: str = "0" * 32) -> Order:
    return ordering.order(name, zone=REGION, token=token)


def machines(client: Lambda, mine: Deployment, *, regions: tuple[str, ...] = (REGION,)) -> LambdaMachines:
    """Ready to launch: the key and the rulesets are there."""
    props = {"public_key": PUBLIC_KEY, "ssh_from": ["203.0.113.7"], "regions": regions}
    rulesets = access.ensure(client, mine, props)
    wish = {"instance": "gpu_8x_h100_sxm5", "gpus": 8, "image": "", "key": f"trainstack-{mine.digest}"}
    places = {region: {"ruleset": id_} for region, id_ in rulesets.items()}
    ticks = iter(range(0, 10**9, 60))
    return LambdaMachines(mine, client, wish=wish, places=places, sleep=lambda _: None, clock=lambda: next(ticks))
