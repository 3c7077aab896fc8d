"""`make setup` (scripts/setup.py): its sentences, its repairs, and that a second run does nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import setup

ROOT = Path(__file__).resolve().parents[2]


# --- sentences ---


def test_too_old_a_python_is_named_with_what_to_do() -> None:
    with pytest.raises(setup.SetupError, match=r"Python 3\.9 is too old, 3\.11 or newer .* `make setup PYTHON="):
        setup.check_python((3, 9, 2, "final", 0))


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(setup.SetupError, match=r"/proc/\w+ can't be written"):
        setup.check_folder(Path("/proc/nowhere"))


def test_a_folder_that_path_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(setup.SetupError, match="rename it"):
        setup.check_folder(tmp_path / "a:b")


def test_too_little_disk_space_is_said_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(setup.SetupError, match=r"needs 6 GiB .* 1\.5 GiB are free"):
        setup.check_space(tmp_path, free_bytes=1.5 * 2**30)


def test_without_uv_and_venv_module_the_package_to_install_is_named(tmp_path: Path) -> None:
    with pytest.raises(setup.SetupError, match="apt install python3-venv"):
        setup.make_uv(tmp_path, python=sys.executable, has_venv_module=False)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        ("uv pip sync ended with exit code 2: error: No space left on device (os error 28)", "There is no disk space"),
        ("uv pip sync ended with exit code 2: dns error: failed to look up", "The package index can't be reached"),
        ("uv venv ended with exit code 2: error: no such thing", "Uv venv ended with exit code 2"),
    ],
)
def test_failures_of_uv_are_told_apart(failure: str, sentence: str, tmp_path: Path) -> None:
    said = setup.explain(failure, root=tmp_path)
    assert said.startswith(sentence)
    assert "`make setup`" in said
    assert "\n" not in said


# --- programs of the system ---


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_missing_programs_are_looked_for_on_path_and_in_the_system_folders(tmp_path: Path) -> None:
    script(tmp_path / "sbin/sshd", "")
    script(tmp_path / "bin/ssh-keygen", "")
    found = setup.missing_programs(path=f"{tmp_path}/bin", needs_ip=True, system_folders=(f"{tmp_path}/sbin",))
    assert found == {"ip": "iproute2"}


def test_not_being_root_the_user_is_told_what_to_install(tmp_path: Path) -> None:
    said = setup.install_programs({"sshd": "openssh-server"}, path=os.defpath, is_root=False, root=tmp_path)
    assert "apt install openssh-server" in said


def test_apt_updates_its_lists_when_the_package_is_unknown_and_starts_no_service(tmp_path: Path) -> None:
    log, policy = tmp_path / "log", tmp_path / "policy-rc.d"
    script(
        tmp_path / "bin/apt-get",
        f"""echo "$@ policy:$(cat '{policy}' | tail -n 1)" >> '{log}'
        case "$*" in
            *update*) touch '{tmp_path}/lists' ;;
            *install*) test -e '{tmp_path}/lists' ;;
        esac""",
    )
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    ip = {"ip": "iproute2"}
    assert setup.install_programs(ip, path=path, is_root=True, root=tmp_path, policy=policy) == ""
    asked = log.read_text().splitlines()
    assert [re.search("install|update", line)[0] for line in asked] == ["install", "update", "install"]  # type: ignore[index]
    assert all("DPkg::Lock::Timeout" in line and line.endswith("policy:exit 101") for line in asked)
    assert not policy.exists()


def test_apt_that_fails_leaves_advice_and_no_policy_file(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    script(tmp_path / "bin/apt-get", "echo 'E: Unable to locate package' >&2; exit 100")
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    said = setup.install_programs({"ip": "iproute2"}, path=path, is_root=True, root=tmp_path, policy=policy)
    assert "apt install iproute2" in said
    assert "Unable to locate" in said
    assert not policy.exists()


def test_a_policy_file_of_the_system_is_left_alone(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("theirs")
    script(tmp_path / "bin/apt-get", "")
    setup.install_programs(
        {"ip": "iproute2"}, path=f"{tmp_path}/bin:/usr/bin:/bin", is_root=True, root=tmp_path, policy=policy
    )
    assert policy.read_text() == "theirs"


# --- whole runs, in a small checkout: one package in its lock, the engine from this machine's cache ---


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "ein Klon é"
    for folder in ("scripts", "infra"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "activate", root)
    (root / "stacks").mkdir()
    (root / "requirements").mkdir()
    lock = (ROOT / "requirements/all.lock").read_text()
    entry = re.search(r"^typing-extensions==(?:.*\\\n)*.*\n", lock, flags=re.MULTILINE)
    assert entry is not None
    (root / "requirements/all.lock").write_text(entry[0])
    (root / "Pulumi.yaml").write_text("name: trial\nruntime: python\nstackConfigDir: stacks\n")
    return root


def run_setup(root: Path) -> subprocess.CompletedProcess[str]:
    folder = Path(sys.executable).parent  # uv is there
    settings = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "scripts/setup.py"]
    return subprocess.run(
        command, cwd=root, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def changes(root: Path) -> dict[str, int]:
    places = [*root.glob(".trainstack/**/*"), *root.glob(".venv/*"), *root.glob(".venv/lib/*/*/*")]
    return {str(path): path.lstat().st_mtime_ns for path in places}


def imports_infra(root: Path) -> bool:
    command = [root / ".venv/bin/python", "-c", "import infra, typing_extensions; print(infra.__file__)"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    return done.stdout.strip() == str(root / "infra/__init__.py")


@pytest.mark.end_to_end
def test_a_run_sets_up_a_second_does_nothing_and_damage_or_a_move_is_repaired(checkout: Path) -> None:
    first = run_setup(checkout)
    assert first.returncode == 0, first.stderr
    assert imports_infra(checkout)

    before = changes(checkout)
    second = run_setup(checkout)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert changes(checkout) == before

    (checkout / ".venv/bin/python").unlink()
    assert run_setup(checkout).returncode == 0
    assert imports_infra(checkout)

    moved = checkout.rename(checkout.with_name("umgezogen é"))
    assert run_setup(moved).returncode == 0
    assert imports_infra(moved)
    shell = subprocess.run(
        ["bash", "-c", "source ./activate && pulumi stack --show-name"],
        cwd=moved,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shell.stdout.strip() == "local", shell.stderr


def test_a_lock_that_asks_for_what_is_not_there_fails_with_one_sentence(checkout: Path) -> None:
    (checkout / "requirements/all.lock").write_text("typing-extensions==0.0.1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    done = run_setup(checkout)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "make setup" in done.stderr
    assert not (checkout / ".venv/trainstack.json").exists()
