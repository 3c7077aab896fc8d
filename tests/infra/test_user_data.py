"""What a cloud's machine is given at its start: small enough, the guard first, and a guard that ends the billing."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra import ssh_keys, user_data
from infra.providers.aws import faults as aws_faults
from infra.providers.gcp import faults as gcp_faults
from infra.user_data import FirstBoot, cloud_config

AWS_LIMIT_BYTES = 16384
DEADLINE = 2_000_000_000


@pytest.fixture
def boot(tmp_path: Path) -> FirstBoot:
    public = ssh_keys.make_pair(tmp_path / "host", comment="node-0")
    return FirstBoot(
        name="node-0",
        host_key=(tmp_path / "host").read_text(),
        host_public_key=public,
        authorized_key='ssh-ed25519 AAAA it\'s "J. Doé" $HOME `id` \\ %s',
        expires_at=datetime.fromtimestamp(DEADLINE, UTC),
        lifetime_s=3600,
    )


def config(boot: FirstBoot) -> dict[str, Any]:
    first, _, rest = cloud_config(boot).partition("\n")
    assert first == "#cloud-config"
    return dict(json.loads(rest))


def test_it_fits_where_least_fits_with_room_for_a_key_of_another_kind(boot: FirstBoot) -> None:
    assert len(cloud_config(boot).encode()) + 4096 < AWS_LIMIT_BYTES


def test_the_same_is_asked_with_the_same_text(boot: FirstBoot) -> None:
    assert cloud_config(boot) == cloud_config(boot)


def test_the_guard_is_armed_before_anything_else(boot: FirstBoot) -> None:
    made = config(boot)
    assert next(iter(made)) == "bootcmd"
    assert "write_files" not in made
    assert "runcmd" not in made
    *before, last = made["bootcmd"]
    assert last == ["systemctl", "enable", "--now", "--no-block", "trainstack-guard.timer"]
    assert [argv[4] for argv in before if argv[0] == "sh"] == [
        user_data.GUARD,
        user_data.DEADLINE_FILE,
        user_data.LONGEST_UPTIME_FILE,
        "/etc/systemd/system/trainstack-guard.service",
        "/etc/systemd/system/trainstack-guard.timer",
    ]


def test_the_machine_has_our_keys_and_no_other_way_in(boot: FirstBoot) -> None:
    made = config(boot)
    assert made["ssh_keys"] == {"ed25519_private": boot.host_key, "ed25519_public": boot.host_public_key}
    assert (made["ssh_deletekeys"], made["ssh_pwauth"], made["disable_root"]) == (True, False, True)
    (user,) = made["users"]
    assert (user["name"], user["ssh_authorized_keys"]) == ("trainstack", [boot.authorized_key])


def test_a_refusal_that_repeats_the_user_data_shows_no_host_key(boot: FirstBoot) -> None:
    said = f"Invalid value for field 'resource.metadata': '{cloud_config(boot)}'"
    google = {"error": {"message": said, "errors": [{"reason": "invalid"}]}}
    operation = gcp_faults.read_operation([{"code": "INVALID", "message": said}])
    for refusal in (
        aws_faults.from_code("InvalidUserData.Malformed", said, where="node-0 in us-east-1a"),
        gcp_faults.fault(gcp_faults.read(google), status=400, doing="starting node-0"),
        gcp_faults.fault(operation, status=0, doing="starting node-0"),
    ):
        assert "Invalid value for field" in str(refusal)
        assert not any(line in str(refusal) for line in boot.host_key.splitlines())


class Machine:
    """A folder that stands for a machine's root, with the programs that the guard calls."""

    def __init__(self, root: Path, boot: FirstBoot) -> None:
        self.root, self._bin = root, root / "bin"
        for folder in ("bin", "etc/systemd/system", "usr/local/sbin", "proc"):
            (root / folder).mkdir(parents=True)
        self.boot(boot)
        self.set_uptime("12.34 56.78\n")
        for name in ("cat", "cut"):
            (self._bin / name).symlink_to(shutil.which(name) or name)
        self.program("logger", "exit 0")
        self.program("shutdown", f'echo "$@" >> "{root}/shutdowns"')
        self.set_clock(DEADLINE - 1)

    def boot(self, boot: FirstBoot) -> None:
        """cloud-init's bootcmd, at each boot; what systemctl would do is another's test."""
        for argv in config(boot)["bootcmd"]:
            if argv[0] != "systemctl":
                subprocess.run([self._inside(each) for each in argv], check=True)

    def _inside(self, text: str) -> str:
        for path in ("/etc/", "/usr/local/sbin/", "/proc/uptime"):
            if text.startswith((path, "#!")):
                text = text.replace(path, f"{self.root}{path}")
        return text

    def program(self, name: str, line: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def set_clock(self, seconds: int | str) -> None:
        self.program("date", f'[ "$1" = +%s ] && echo {seconds}')

    def set_uptime(self, text: str) -> None:
        (self.root / "proc" / "uptime").write_text(text)

    @property
    def deadline(self) -> Path:
        return self.root / "etc" / "trainstack" / "deadline"

    @property
    def longest_uptime(self) -> Path:
        return self.root / "etc" / "trainstack" / "longest-uptime"

    @property
    def guard(self) -> Path:
        return self.root / "usr" / "local" / "sbin" / "trainstack-guard"

    def shuts_down(self) -> bool:
        """Whether the guard, started once as its timer does it, powers the machine off."""
        told = self.root / "shutdowns"
        told.unlink(missing_ok=True)
        subprocess.run(
            [str(self.guard)], env={"PATH": str(self._bin)}, check=False, capture_output=True, stdin=subprocess.DEVNULL
        )
        if not told.exists():
            return False
        assert told.read_text() == "-h now\n"
        return True


@pytest.fixture
def machine(tmp_path: Path, boot: FirstBoot) -> Machine:
    return Machine(tmp_path / "machine", boot)


def test_while_the_lifetime_lasts_the_machine_stays(machine: Machine) -> None:
    assert not machine.shuts_down()


def test_at_the_deadline_it_is_powered_off(machine: Machine) -> None:
    machine.set_clock(DEADLINE)
    assert machine.shuts_down()


@pytest.mark.parametrize(("uptime", "ends"), [("3599.99 1", False), ("3600.00 1", True)])
def test_the_uptime_is_a_bound_when_the_clock_is_wrong(uptime: str, ends: bool, machine: Machine) -> None:
    machine.set_clock(0)
    machine.set_uptime(uptime)
    assert machine.shuts_down() is ends


@pytest.mark.parametrize("content", [None, "", "\n", "soon\n", "12:30\n", "99999999999999999999999\n", "2e9\n", "-1\n"])
@pytest.mark.parametrize("which", ["deadline", "longest_uptime"])
def test_a_file_that_is_missing_or_no_number_counts_as_over(which: str, content: str | None, machine: Machine) -> None:
    file: Path = getattr(machine, which)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert machine.shuts_down()


@pytest.mark.parametrize("uptime", ["", "garbage"])
def test_an_uptime_that_can_not_be_read_counts_as_over(uptime: str, machine: Machine) -> None:
    machine.set_uptime(uptime)
    assert machine.shuts_down()


def test_a_clock_that_can_not_be_read_counts_as_over(machine: Machine) -> None:
    machine.program("date", "exit 1")
    assert machine.shuts_down()


def test_a_log_that_fails_does_not_keep_the_machine(machine: Machine) -> None:
    machine.set_clock(DEADLINE)
    machine.program("logger", "exit 1")
    assert machine.shuts_down()


def test_a_moved_deadline_stays_moved_at_the_next_boot(machine: Machine, boot: FirstBoot) -> None:
    machine.deadline.write_text(f"{DEADLINE + 1000}\n")
    machine.boot(boot)
    assert machine.deadline.read_text() == f"{DEADLINE + 1000}\n"
    machine.set_clock(DEADLINE)
    assert not machine.shuts_down()


def test_files_are_put_whole_with_their_mode_and_no_trace(machine: Machine) -> None:
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (machine.guard, machine.deadline)}
    assert modes == {machine.guard: 0o755, machine.deadline: 0o644}
    assert machine.deadline.read_text() == f"{DEADLINE}\n"
    assert not [name for _, _, names in os.walk(machine.root) for name in names if name.endswith(".new")]


def test_a_put_that_was_cut_off_is_done_at_the_next_boot(machine: Machine, boot: FirstBoot) -> None:
    machine.deadline.unlink()
    machine.deadline.with_name("deadline.new").write_text("20")
    machine.boot(boot)
    assert machine.deadline.read_text() == f"{DEADLINE}\n"


def test_put_writes_odd_characters_as_they_are(tmp_path: Path, boot: FirstBoot) -> None:
    put = next(argv for argv in config(boot)["bootcmd"] if argv[0] == "sh")
    odd = 'it\'s "ö" %s %% \\n $HOME `id` $(id)\n\n\ttail without newline'
    path = tmp_path / "with blank 'and quote"
    subprocess.run([*put[:4], str(path), odd, "0600"], check=True)
    assert path.read_text() == odd


def test_the_timer_looks_at_least_each_minute_and_the_service_starts_the_guard(machine: Machine) -> None:
    units = machine.root / "etc" / "systemd" / "system"
    timer = (units / "trainstack-guard.timer").read_text()
    assert "OnActiveSec=10s\nOnUnitActiveSec=60s\n" in timer
    assert "ExecStart=/usr/local/sbin/trainstack-guard\n" in (units / "trainstack-guard.service").read_text()
