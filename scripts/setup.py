"""`make setup`: everything that a checkout needs, and nothing twice. Standard library only, starts with Python 3.7+.

    .venv           the packages of requirements/all.lock, by uv
    .trainstack/    the Pulumi engine, its passphrase and backend (infra.pulumi_engine)
    sshd, ip        for nodes on this machine; by apt when root on Debian or Ubuntu, else a line says what to install

Each step looks first whether its work is done, so that a second run takes a fraction of a second, and one after a run
that was killed repairs what was left half done. On failure: one sentence, non-zero exit.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON = (3, 11)
ENVIRONMENT_GIB = 6.0
STEP_LIMIT_S = 3600.0
# Where sshd and ip are, though a user's PATH often isn't so long.
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/libexec")
NO_NETWORK = re.compile(
    r"error sending request|dns error|failed to fetch|connection|timed? ?out|resolve|unreachable", re.I
)


class SetupError(Exception):
    """One sentence: what is missing, and what to do."""


def report(line):
    print("setup: " + line, flush=True)


def check_python(version):
    """`version`: a tuple such as sys.version_info."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise SetupError(
            f"Python {version[0]}.{version[1]} is too old, 3.11 or newer is needed: "
            "install one and run `make setup PYTHON=python3.11`."
        )


def check_folder(root):
    """The checkout can be written to and can stand in PATH."""
    if os.pathsep in str(root) or "\n" in str(root):
        raise SetupError(
            f"The folder {root} has a {os.pathsep!r} or a line end in its name, which PATH can't hold: rename it."
        )
    try:
        (root / ".trainstack").mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=root / ".trainstack"):
            pass
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise SetupError(f"There is no disk space left at {root}: free some {ENVIRONMENT_GIB:.0f} GiB.") from error
        raise SetupError(f"{root} can't be written ({error.strerror}): make it writable or clone elsewhere.") from error


def check_space(root, *, free_bytes):
    """Before a new .venv is filled."""
    free_gib = free_bytes / 2**30
    if free_gib < ENVIRONMENT_GIB:
        raise SetupError(
            f"The Python environment needs {ENVIRONMENT_GIB:.0f} GiB of disk space at {root}, "
            f"and {free_gib:.1f} GiB are free: free some, or clone onto another disk."
        )


# --- uv -------------------------------------------------------------------------------------------------------------


def find_uv(root, *, path):
    """A uv that runs, or None: on `path`, in .venv, or in .trainstack/uv where `make_uv` puts it."""
    places = [shutil.which("uv", path=path), root / ".venv/bin/uv", root / ".trainstack/uv/bin/uv"]
    for place in places:
        if place and os.access(place, os.X_OK):
            done = subprocess.run([str(place), "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode == 0:
                return Path(place)
    return None


def make_uv(root, *, python, has_venv_module):
    """uv from the package index, as requirements/all.lock pins it, in a virtual environment of its own."""
    if not has_venv_module:
        raise SetupError(
            f"Neither uv nor the venv module of {python} is here: install one of them "
            "(Debian, Ubuntu: `apt install python3-venv`) and run `make setup` again."
        )
    lock = (root / "requirements/all.lock").read_text(encoding="utf-8")
    pinned = re.search(r"^uv==(?:.*\\\n)*.*\n", lock, flags=re.MULTILINE)
    if pinned is None:
        raise SetupError(f"{root / 'requirements/all.lock'} pins no uv: restore the file from git.")
    folder = root / ".trainstack/uv"
    shutil.rmtree(folder, ignore_errors=True)
    requirement = root / ".trainstack/uv.txt"
    requirement.write_text(pinned[0], encoding="utf-8")
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(requirement)]
    run([python, "-m", "venv", str(folder)], what="making a virtual environment for uv", root=root)
    run(pip, what="getting uv", root=root)
    requirement.unlink()
    return folder / "bin/uv"


# --- .venv ----------------------------------------------------------------------------------------------------------


def wanted_stamp(root):
    """What .venv/trainstack.json says when the environment is whole: for this lock and this place."""
    digest = hashlib.sha256((root / "requirements/all.lock").read_bytes()).hexdigest()
    return {"lock": digest, "root": str(root)}


def environment_is_whole(root):
    try:
        stamp = json.loads((root / ".venv/trainstack.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return stamp == wanted_stamp(root) and os.access(root / ".venv/bin/python", os.X_OK)


def make_environment(root, *, uv, python, free_bytes):
    """Make or repair .venv so that it holds exactly what the lock says."""
    venv = root / ".venv"
    (venv / "trainstack.json").unlink(missing_ok=True)
    if not _usable(venv):
        check_space(root, free_bytes=free_bytes)
        report("making .venv")
        if venv.is_symlink():
            venv.unlink()
        elif venv.exists():
            shutil.rmtree(venv)
        run([str(uv), "venv", "--quiet", "--python", python, str(venv)], what="uv venv", root=root)
    interpreter = str(venv / "bin/python")
    report("installing the packages of requirements/all.lock (some minutes and 2 GiB of download at the first time)")
    lock = str(root / "requirements/all.lock")
    run([str(uv), "pip", "sync", "--require-hashes", "--python", interpreter, lock], what="uv pip sync", root=root)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([interpreter, "-c", ask], what="asking .venv's Python", root=root).strip())
    # Makes `import infra` work in every process of .venv, such as Pulumi's dynamic providers, whatever folder it is in.
    # A line of code, in ASCII: a bare path would be decoded by the locale, and Python can't start where that fails.
    line = f"import os, sys; sys.path.append(os.fsdecode({os.fsencode(root)!r}))\n"
    (packages / "trainstack.pth").write_text(line, encoding="ascii")
    (venv / "trainstack.json").write_text(json.dumps(wanted_stamp(root)), encoding="utf-8")


def _usable(venv):
    """Whether .venv's Python runs, is new enough, and the programs in .venv/bin name this place and not an old one."""
    try:
        activate = (venv / "bin/activate").read_text(encoding="utf-8")
        ask = [str(venv / "bin/python"), "-c", f"import sys; print(sys.version_info[:2] >= {OLDEST_PYTHON})"]
        done = subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return False
    return str(venv) in activate and done.returncode == 0 and done.stdout.strip() == b"True"


def run(argv, *, what, root):
    """Run one command with progress lines; its output, or SetupError."""
    from infra.pulumi_engine.progress import CommandFailed, run_with_progress

    # Variables that would send uv or Python to another environment than the one we name.
    dropped = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_SYSTEM_PYTHON", "PYTHONHOME", "PYTHONPATH")
    settings = {name: value for name, value in os.environ.items() if name not in dropped}
    settings["UV_PYTHON_DOWNLOADS"] = "never"
    try:
        return run_with_progress(
            argv, what=what, limit_s=STEP_LIMIT_S, report=report, environment=settings, folder=root
        )
    except CommandFailed as error:
        raise SetupError(explain(str(error), root=root)) from error


def explain(failure, *, root):
    """The sentence for a command's failure."""
    if "No space left" in failure or "os error 28" in failure:
        what = f"There is no disk space left at {root} or in the cache: free some {ENVIRONMENT_GIB:.0f} GiB"
        return f"{what} and run `make setup` again ({failure})."
    if NO_NETWORK.search(failure):
        what = "The package index can't be reached: check the network, or the index that is configured,"
        return f"{what} and run `make setup` again ({failure})."
    return f"{failure[:1].upper()}{failure[1:]}: mend that and run `make setup` again."


# --- the engine, sshd -----------------------------------------------------------------------------------------------


def engine_is_ready(root):
    from infra.errors import EngineError
    from infra.pulumi_engine import find_pulumi, is_initialised

    try:
        find_pulumi(root)
    except EngineError:
        return False
    return is_initialised(root)


def missing_programs(*, path, needs_ip, system_folders=SYSTEM_FOLDERS):
    """The Debian packages of the programs that aren't there."""
    places = os.pathsep.join([path, *system_folders])
    packages = {"sshd": "openssh-server", "ssh-keygen": "openssh-client"}
    if needs_ip:
        packages["ip"] = "iproute2"
    return {program: package for program, package in packages.items() if shutil.which(program, path=places) is None}


def install_programs(missing, *, path, is_root, root, policy=Path("/usr/sbin/policy-rc.d")):
    """Install what nodes on this machine need; returns what is left for the user to do, or "" when all is there."""
    advice = "install {} (Debian, Ubuntu: `apt install {}`)".format(
        ", ".join(sorted(missing)), " ".join(sorted(set(missing.values())))
    )
    only_local = "only stacks of the provider `local` need it"
    apt = shutil.which("apt-get", path=path)
    if not is_root or apt is None:
        return f"{advice}; {only_local}"
    report(f"installing {', '.join(sorted(missing))} by apt-get")
    apt_get = [apt, "-o", "DPkg::Lock::Timeout=300"]
    install = ["env", "DEBIAN_FRONTEND=noninteractive", *apt_get, "install", "--yes", "--no-install-recommends"]
    install += sorted(set(missing.values()))
    # We want the programs, not a server on port 22: this is Debian's way to say "start no service now".
    blocks = not policy.exists()
    try:
        if blocks:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        try:
            run(install, what="apt-get install", root=root)
        except SetupError:  # package lists that are missing or old are the usual reason
            run([*apt_get, "update"], what="apt-get update", root=root)
            run(install, what="apt-get install", root=root)
    except (SetupError, OSError) as error:
        return f"{advice}, because apt-get didn't ({error}); {only_local}"
    finally:
        if blocks:
            policy.unlink(missing_ok=True)
    systemctl = shutil.which("systemctl", path=path)
    if systemctl and "sshd" in missing:  # nor one after the next boot
        subprocess.run([systemctl, "disable", "ssh.service", "ssh.socket"], capture_output=True, check=False)
    return ""


def set_up(root):
    """All steps; returns the exit code."""
    path = os.environ.get("PATH", os.defpath)
    check_python(sys.version_info)
    check_folder(root)
    sys.path.insert(0, str(root))
    from infra.pulumi_engine.files import exclusive

    is_root = os.geteuid() == 0
    # Of a virtual environment's Python, the one that it was made from: .venv can't be made from itself.
    python = getattr(sys, "_base_executable", sys.executable)
    with exclusive(root / ".trainstack/setup.lock", what="setup", report=report):
        if not environment_is_whole(root):
            uv = find_uv(root, path=path)
            if uv is None:
                has_venv_module = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
                uv = make_uv(root, python=python, has_venv_module=has_venv_module)
            elif root / ".venv" in uv.parents and not _usable(root / ".venv"):
                uv = Path(shutil.copy2(uv, root / ".trainstack/uv.copy"))
            make_environment(root, uv=uv, python=python, free_bytes=shutil.disk_usage(root).free)
        if not engine_is_ready(root):
            engine = [str(root / ".venv/bin/python"), "-m", "infra.pulumi_engine"]
            code = subprocess.run(engine, cwd=root, stdin=subprocess.DEVNULL, check=False).returncode
            if code != 0:  # it has said why
                return code
        missing = missing_programs(path=path, needs_ip=is_root and sys.platform == "linux")
        advice = install_programs(missing, path=path, is_root=is_root, root=root) if missing else ""
        if advice:
            report(advice)
    return 0


def main():
    try:
        return set_up(ROOT)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # a full or failing disk, in the middle of a step
        print(
            f"{error.filename or ROOT} can't be used ({error.strerror}): mend that and run `make setup` again.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("Interrupted: run `make setup` again to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
