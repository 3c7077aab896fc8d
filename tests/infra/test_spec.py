"""The stack file: what is taken, and the one sentence for each thing that isn't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import providers
from infra.errors import SpecError
from infra.spec import KEYS, ClusterSpec, parse, parse_config

FILE = "stacks/Pulumi.local.yaml"
ROOT = Path(__file__).resolve().parents[2]


def spec(**changes: Any) -> ClusterSpec:
    return parse({"provider": "local", **changes}, file=FILE)


def refusal(**changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        spec(**changes)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_stack_file_that_ships_is_valid_and_names_every_key() -> None:
    config = yaml.safe_load((ROOT / FILE).read_text(encoding="utf-8"))["config"]["trainstack:cluster"]
    assert parse(config, file=FILE).nodes == 2
    assert set(config) == set(providers.load("local").keys)


def test_the_settings_are_these_so_that_a_new_one_is_a_decision() -> None:
    assert (
        *("provider", "nodes", "processes_per_node", "shared_storage", "max_lifetime", "max_hourly_usd"),
        *("region", "zones", "gpus", "instance", "market", "reservation", "image", "disk_gib", "ssh_from", "egress"),
        "storage",
    ) == KEYS


@pytest.mark.parametrize(("written", "seconds"), [("24h", 86400), ("90m", 5400), ("7d", 604800), ("60s", 60)])
def test_a_duration_is_read_with_its_unit(written: str, seconds: int) -> None:
    assert spec(max_lifetime=written).max_lifetime_s == seconds


def test_decimals_that_pulumi_config_set_wrote_as_text_are_read() -> None:
    assert spec(max_hourly_usd="0.5").max_hourly_usd == 0.5


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("nodes", 0, "take 1 or more"),
        ("nodes", -1, "take 1 or more"),
        ("nodes", True, "not a whole number"),
        ("nodes", 2.5, "not a whole number"),
        ("nodes", "2", "without quotes"),
        ("nodes", None, "not a whole number"),
        ("nodes", [2], "not a whole number"),
        ("processes_per_node", 0, "take 1 or more"),
        ("processes_per_node", 10_000, "take 64 or fewer"),
        ("provider", True, "quote it"),
        ("provider", "locl", "did you mean local?"),
        ("provider", "Local ", "'Local '"),
        ("provider", "", "take one of aws, gcp, lambda, local"),
        ("shared_storage", "yes", "write true or false"),
        ("shared_storage", 1, "write true or false"),
        ("max_lifetime", 24, '"24h"'),
        ("max_lifetime", "24", '"24h"'),
        ("max_lifetime", "24:00", '"24h"'),
        ("max_lifetime", "1s", "between 1m and 30d"),
        ("max_lifetime", "9999d", "between 1m and 30d"),
        ("max_lifetime", "24h\r", "'24h\\r'"),
        ("max_hourly_usd", float("nan"), "finite"),
        ("max_hourly_usd", float("inf"), "finite"),
        ("max_hourly_usd", -1, "0 or more"),
        ("max_hourly_usd", True, "not a number"),
        ("max_hourly_usd", "cheap", "not a number"),
        ("node", 2, "did you mean nodes?"),
        ("shared-storage", True, "did you mean shared_storage?"),
        ("quite_else", 2, "take one of provider"),
        ("market", "spott", "did you mean spot?"),
        ("market", "persistent", "take one of on-demand, spot, flex-start"),
        ("zones", [], "name at least one"),
        ("zones", ["a", "a"], "name each once"),
        ("zones", [1], "not a text"),
        ("region", "", "as its console shows it"),
        ("ssh_from", "203.0.113.7/24", "host bits"),
        ("ssh_from", ["anywhere"], "write 203.0.113.7"),
        ("ssh_from", ["203.0.113.7", "203.0.113.7/32"], "name each once"),
        ("ssh_from", ["2001:db8::1", "2001:DB8:0::1"], "name each once"),
        ("disk_gib", "200", "without quotes"),
        ("storage", "lustre", "not a mapping"),
        ("storage.kind", {"kind": "lustr"}, "did you mean lustre?"),
        ("storage.size_gb", {"kind": "nfs", "size_gb": 3}, "did you mean size_gib?"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_file_key_and_remedy(key: str, value: object, said: str) -> None:
    sentence = refusal(**{key.partition(".")[0]: value})
    assert sentence.startswith(f"{FILE}, key trainstack:cluster.{key} ")
    assert said in sentence
    assert "\n" not in sentence


def test_all_wrong_keys_are_told_at_once() -> None:
    assert len(refusal(nodes=0, max_lifetime="x", nods=1).splitlines()) == 3


@pytest.mark.parametrize("value", ["local", 3, [1], True])
def test_something_that_is_no_mapping_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="not a mapping"):
        parse(value, file=FILE)


def test_pulumis_configuration_is_read_and_other_keys_of_ours_are_refused() -> None:
    good = {"trainstack:cluster": json.dumps({"provider": "local"}), "aws:region": "x"}
    assert parse_config(good, file=FILE, project="trainstack").provider == "local"
    with pytest.raises(SpecError) as caught:
        parse_config({"trainstack:clutser": "{}"}, file=FILE, project="trainstack")
    unknown, missing = str(caught.value).splitlines()
    assert "did you mean cluster?" in unknown
    assert "key trainstack:cluster is missing" in missing
    with pytest.raises(SpecError, match="not a mapping"):
        parse_config({"trainstack:cluster": "hello"}, file=FILE, project="trainstack")
