"""The gang's record on disk: what a killed process leaves to the next."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from infra import gang_record
from infra.errors import ProviderError
from infra.gang_record import Record, provider_of, zone_of
from tests.infra.in_memory_cloud import NOW


def test_the_record_survives_the_process(tmp_path: Path) -> None:
    first = Record(tmp_path / "gang", provider="fake", now=NOW)
    first.begin("a")
    token, key = first.token("node-0"), first.host_key("node-0")
    second = Record(tmp_path / "gang", provider="other", now=NOW.replace(year=2030))
    assert (second.created_at, second.zone, second.is_open) == (NOW, "a", True)
    assert (second.token("node-0"), second.host_key("node-0")) == (token, key)
    assert (provider_of(tmp_path / "gang"), zone_of(tmp_path / "gang")) == ("fake", "a")


def test_a_token_of_another_zone_is_dropped_and_one_of_a_seen_machine_too(tmp_path: Path) -> None:
    record = Record(tmp_path, provider="fake", now=NOW)
    record.begin("a")
    token = record.token("node-0")
    record.begin("a")
    assert record.token("node-0") == token
    record.begin("b")
    other = record.token("node-0")
    assert other != token
    record.confirm("node-0")
    assert not record.is_open
    assert record.token("node-0") not in (token, other)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"created_at": "soon"}', '{"created_at": "2026-03-01T12:00:00"}', "\udcff"],
)
def test_a_record_that_is_none_is_told_in_one_sentence_with_its_path(content: str, tmp_path: Path) -> None:
    path = tmp_path / "gang.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ProviderError, match=r"can't be read as the record.*make destroy") as error:
        Record(tmp_path, provider="fake", now=NOW)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert provider_of(tmp_path) is zone_of(tmp_path) is None


def test_keys_and_folders_are_the_users_alone(tmp_path: Path) -> None:
    record = Record(tmp_path / "gang", provider="fake", now=NOW)
    record.begin("a")
    record.host_key("node-0")
    modes = {"gang": 0o700, "gang/host_keys": 0o700, "gang/host_keys/node-0": 0o600}
    assert {path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in modes} == modes
    for _ in range(2):
        gang_record.remove(tmp_path / "gang")
    assert list(tmp_path.iterdir()) == []
