"""What is wrong is said before anything is made: by the stack file alone, and by what Lambda's API tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.errors import AccessError, ProviderError
from infra.providers.base import Deployment
from infra.providers.lambda_cloud import PROVIDER, access, api, leftovers, plan, preflight
from infra.providers.lambda_cloud.api import Lambda
from tests.infra.lambda_cloud.asking import asked, machines, order
from tests.infra.ordering import PUBLIC_KEY
from tests.stand_ins.lambda_cloud.server import KEY, StandIn

KEYS = "stacks/Pulumi.lambda.yaml, key trainstack:cluster"


def said(mine: Deployment, **keys: Any) -> list[str]:
    return preflight.problems(asked(**keys), mine)


# The types


def test_the_types_are_those_that_the_api_tells(client: Lambda) -> None:
    types = plan.types(client.offers)
    told = {name: (each.gpu_model, each.gpu_count, each.gpu_memory_gib) for name, each in types.items()}
    assert told == {
        "gpu_1x_a10": ("A10", 1, 24),
        "gpu_1x_h100_pcie": ("H100", 1, 80),
        "gpu_1x_h100_sxm5": ("H100", 1, 80),
        "gpu_8x_a100_80gb_sxm4": ("A100-80GB", 8, 80),
        "gpu_8x_h100_sxm5": ("H100", 8, 80),
    }  # GH200 is an Arm machine


def test_todays_capacity_does_not_change_the_choice(cloud: StandIn, mine: Deployment) -> None:
    machine = plan.plan(asked(gpus="H100:1"), api.connect().offers).machine
    cloud.capacity = {("us-east-1", "gpu_1x_h100_sxm5"): 1}
    assert plan.plan(asked(gpus="H100:1"), api.connect().offers).machine.name == machine.name
    assert mine


# Before the API


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"gpus": "H100:7"}, f"{KEYS}.gpus: no machine type of Lambda has GPUs H100:7"),
        ({"gpus": None, "instance": "gpu_1x_gh200"}, f"{KEYS}.instance: machine type 'gpu_1x_gh200' isn't in"),
        ({"gpus": None}, f"{KEYS}.gpus or instance: neither is there: write one of the two"),
        ({"nodes": 17}, f"{KEYS}.nodes is 17: a gang on Lambda has at most 16"),
        ({"processes_per_node": 9}, f"{KEYS}.processes_per_node is 9, and gpu_8x_h100_sxm5 has 8 GPU"),
        ({"region": "us-east-1", "zones": ["us-west-1"]}, f"{KEYS}.zones and region are both there"),
        ({"region": "us-west-1"}, f"{KEYS}.region: us-west-1 has no gpu_8x_h100_sxm5 free now: take of us-east-1"),
        ({"zones": ["mars-1"]}, f"{KEYS}.zones: mars-1 has no gpu_8x_h100_sxm5 free now: take of us-east-1"),
        ({"image": "windows"}, f"{KEYS}.image is 'windows': take one of Lambda's image families (lambda-stack-24-04"),
    ],
)
def test_wrong_keys_are_named(cloud: StandIn, mine: Deployment, keys: dict[str, Any], told: str) -> None:
    (line,) = said(mine, **keys)
    assert line.startswith(told)
    assert cloud.billing() == []


def test_what_can_be_had_is_not_refused(cloud: StandIn, mine: Deployment) -> None:
    assert said(mine) == said(mine, zones=["us-west-1", "us-east-1"]) == said(mine, image="ubuntu-lts") == []
    assert {method for method, _ in cloud.calls} == {"GET"}


# By the API


def test_nothing_free_is_told_but_not_to_those_that_run(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    ours = machines(client, mine)
    for name in ("node-0", "node-1"):
        ours.launch(order(name, token=name[-1] * 32))
    cloud.capacity = {}
    assert said(mine) == []
    (line,) = said(mine, nodes=3)
    assert line.startswith("Lambda has no gpu_8x_h100_sxm5 free in any region now")


def test_a_wrong_key_is_told_once(cloud: StandIn, mine: Deployment) -> None:
    cloud.key = "another"
    (line,) = said(mine)
    assert line.startswith("Lambda's machine types: API key was invalid, expired, or deleted (global/invalid-api-key)")
    assert KEY not in line


def test_without_a_key_it_is_said_where_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in api.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(api, "KEY_FILE", tmp_path / "keys")
    with pytest.raises(
        AccessError, match=r"^no key for Lambda: make one at cloud\.lambda\.ai/api-keys and set LAMBDA_API_KEY"
    ):
        api.connect()
    (tmp_path / "keys").write_text("# mine\napi_key = of-the-file\n")
    assert isinstance(api.connect(), Lambda)


def test_a_colleagues_machines_under_the_same_name_are_told_and_left_alone(
    cloud: StandIn, client: Lambda, mine: Deployment, tmp_path: Path
) -> None:
    theirs = Deployment(root=tmp_path, stack="lambda")
    id_ = machines(client, theirs).launch(order())
    (line,) = said(mine)
    assert f"another checkout made ({id_})" in line
    (found,) = leftovers.find(mine, client)
    assert (found.id, found.is_ours, found.is_machine) == (id_, False, True)
    assert cloud.billing() == [id_]


def test_rules_of_the_account_that_open_ssh_to_the_world_are_seen(cloud: StandIn, client: Lambda) -> None:
    anybody = {"protocol": "tcp", "source_network": "0.0.0.0/0"}
    cloud.global_rules = [
        {**anybody, "port_range": [443, 443], "description": "web"},
        {**anybody, "port_range": [22, 22], "description": "SSH from anywhere"},
        {**anybody, "port_range": [1, 65535], "source_network": "203.0.113.0/24", "description": "office"},
    ]
    assert preflight.open_to_all(client) == ["SSH from anywhere"]


# Price and leftovers


def test_the_price_is_lambdas_own_for_all_nodes(cloud: StandIn) -> None:
    (line,) = PROVIDER.price(asked(nodes=3))
    assert line.usd_per_hour == pytest.approx(3 * 23.92)
    assert line.source == "Lambda's API"
    assert cloud.billing() == []


def test_leftovers_are_all_that_is_there_and_go_in_their_order(
    cloud: StandIn, client: Lambda, mine: Deployment
) -> None:
    ours = machines(client, mine, regions=("us-east-1", "us-west-1"))
    ids = [ours.launch(order(name, token=name[-1] * 32)) for name in ("node-0", "node-1")]
    cloud.instances[ids[1]].told["status"] = "unhealthy"
    found = leftovers.find(mine, client)
    assert [each.kind for each in found] == ["instance"] * 2 + ["firewall ruleset"] * 2 + ["SSH key"]
    assert [each.usd_per_hour for each in found[:2]] == [23.92, 23.92]
    for each in found:
        leftovers.remove(each, client)
        leftovers.remove(each, client)
    assert leftovers.find(mine, client) == []
    assert (cloud.billing(), cloud.rulesets, cloud.keys) == ([], {}, {})


@pytest.mark.parametrize("path", ["instances", "firewall-rulesets", "ssh-keys"])
def test_a_list_that_can_not_be_had_is_not_nothing(cloud: StandIn, client: Lambda, mine: Deployment, path: str) -> None:
    cloud.fail("GET", f"/api/v1/{path}", status=200, body=b"{}")
    with pytest.raises(ProviderError, match="so it tells nothing"):
        leftovers.find(mine, client)


@pytest.mark.parametrize("change", [{"status": "sleeping"}, {"id": 7}, {"region": "us-east-1"}, {"private_ip": None}])
def test_a_field_that_changed_its_type_is_an_error(
    cloud: StandIn, client: Lambda, mine: Deployment, change: dict[str, Any]
) -> None:
    machines(client, mine).launch(order())
    (made,) = cloud.instances.values()
    made.boots = 0
    made.told |= {"status": "active", **change}
    with pytest.raises(ProviderError, match="isn't as its API describes it"):
        leftovers.find(mine, client)


# The key and the rulesets


def test_who_may_reach_the_machines_follows_the_stack_file(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    props = {"public_key": PUBLIC_KEY, "ssh_from": ["203.0.113.7"], "regions": ["us-east-1"]}
    first = access.ensure(client, mine, props)
    assert access.ensure(client, mine, props) == first
    wider = access.ensure(
        client, mine, {**props, "ssh_from": ["203.0.113.0/24"], "regions": ["us-east-1", "us-west-1"]}
    )
    assert wider["us-east-1"] == first["us-east-1"]
    assert {rule["source_network"] for each in cloud.rulesets.values() for rule in each["rules"]} == {"203.0.113.0/24"}
    access.ensure(client, mine, {**props, "public_key": "ssh-ed25519 AAAAother"})
    assert [key["public_key"] for key in cloud.keys.values()] == ["ssh-ed25519 AAAAother"]
