"""Where a Pulumi CLI can come from. Each source gives an Engine or raises Unavailable with the reason.

OnPath             the user's own installation
OfficialInstaller  the vendor's download, by the Automation API
GoModules          built from source (go_modules.py), where only package registries can be reached
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infra.pulumi_engine.files import exclusive
from infra.pulumi_engine.progress import CommandFailed, run_with_progress

Report = Callable[[str], object]

# The engine speaks to the Python SDK of pyproject.toml (3.272); an older one lacks calls that the SDK makes.
MINIMUM_VERSION = (3, 250, 0)
OFFICIAL_VERSION = "3.272.0"
INSTALLER_URL = "https://get.pulumi.com/install.sh"
PROGRAMS = ("pulumi", "pulumi-language-python", "pulumi-language-python-exec", "pulumi-resource-pulumi-python")


class Unavailable(Exception):
    """This source can't give an engine here; the text is the reason, without a full stop."""


@dataclass(frozen=True)
class Engine:
    """What a source found."""

    version: str
    programs: Mapping[str, Path]  # name under .trainstack/bin -> file
    # Pulumi's exec script, when the engine comes without a language host and ours has to run it.
    exec_script: Path | None = None


class Source(Protocol):
    name: str

    def find(self) -> Engine | None:
        """The engine, if this source has it on the machine already."""

    def get(self, report: Report) -> Engine:
        """Get the engine, by network and hours of work if need be, or raise Unavailable."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The folder for what is shared by all checkouts: ${XDG_CACHE_HOME:-~/.cache}/trainstack/pulumi."""
    values = os.environ if environment is None else environment
    base = values.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "trainstack" / "pulumi"


def machine_name() -> str:
    """Such as linux-x86_64: a home folder may be shared by machines of different kinds."""
    return f"{platform.system().lower()}-{platform.machine().lower()}"


def cli_version(program: Path) -> str:
    """The version that a CLI says it has, such as "3.274.1"; Unavailable when it can't be run."""
    settings = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"}
    try:
        done = subprocess.run(
            [program, "version"], env=settings, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{program} can't be run ({error})") from error
    found = re.match(r"v?(\d+\.\d+\.\d+)", done.stdout.decode(errors="replace"))
    if done.returncode != 0 or found is None:
        raise Unavailable(f"`{program} version` ended with exit code {done.returncode} and names no version")
    return found[1]


def runs(program: Path) -> bool:
    """Whether it is a CLI that starts: what was whole when it was cached may have been damaged since."""
    try:
        cli_version(program)
    except Unavailable:
        return False
    return True


def new_enough(version: str) -> bool:
    numbers = tuple(int(part) for part in version.split("."))
    return MINIMUM_VERSION <= numbers < (MINIMUM_VERSION[0] + 1,)


class OnPath:
    """A pulumi that the user installed, if its language host for Python is there too."""

    name = "a pulumi on PATH"

    def __init__(self, path: str | None = None) -> None:
        self._path = os.environ.get("PATH", os.defpath) if path is None else path

    def find(self) -> Engine | None:
        try:
            return self.get(str)
        except Unavailable:
            return None

    def get(self, report: Report) -> Engine:
        # What stands in a checkout's own .trainstack/bin isn't the user's installation, and ends with that checkout.
        folders = [
            folder for folder in self._path.split(os.pathsep) if folder and ".trainstack" not in Path(folder).parts
        ]
        path = os.pathsep.join(folders)
        found = shutil.which("pulumi", path=path)
        if found is None:
            raise Unavailable("there is none")
        cli = Path(found).absolute()
        beside = os.pathsep.join([str(cli.parent), str(cli.resolve().parent), path])
        programs = {name: Path(hit).absolute() for name in PROGRAMS if (hit := shutil.which(name, path=beside))}
        if "pulumi-language-python" not in programs:
            raise Unavailable(f"{cli} has no pulumi-language-python beside it")
        version = cli_version(cli)
        if not new_enough(version):
            wanted = ".".join(map(str, MINIMUM_VERSION))
            raise Unavailable(f"{cli} is version {version}, and {wanted} or a later 3.x is needed")
        report(f"pulumi {version} found at {cli}")
        return Engine(version, {**programs, "pulumi": cli})


class OfficialInstaller:
    """The vendor's installer, by `pulumi.automation.PulumiCommand.install`, into the cache."""

    name = "the official installer"

    def __init__(
        self,
        cache: Path | None = None,
        *,
        url: str = INSTALLER_URL,
        probe_limit_s: float = 20,
        limit_s: float = 900,
        version: str = OFFICIAL_VERSION,
    ) -> None:
        base = cache_folder() if cache is None else cache
        self._folder = base / f"{version}-official" / machine_name()
        self._url, self._probe_limit_s, self._limit_s, self._version = url, probe_limit_s, limit_s, version

    def find(self) -> Engine | None:
        folder = self._folder / "bin"
        programs = {name: folder / name for name in PROGRAMS if (folder / name).is_file()}
        if "pulumi-language-python" not in programs or not runs(folder / "pulumi"):
            return None
        return Engine(self._version, programs)

    def get(self, report: Report) -> Engine:
        # Its own first request has no time-out, so we ask before; in a sub-process, as a name look-up has none either.
        probe = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10).read(1)"
        try:
            run_with_progress(
                [sys.executable, "-c", probe, self._url],
                what=f"asking {self._url}",
                limit_s=self._probe_limit_s,
                report=report,
            )
        except CommandFailed as error:
            raise Unavailable(f"{self._url} can't be reached ({str(error).rsplit(' / ', 1)[-1]})") from error
        temporary = self._folder.with_name(f".{self._folder.name}.part")
        install = (
            "import sys; from semver import VersionInfo; from pulumi.automation import PulumiCommand; "
            "PulumiCommand.install(root=sys.argv[1], version=VersionInfo.parse(sys.argv[2]))"
        )
        with exclusive(self._folder.with_name(f".{self._folder.name}.lock"), what="pulumi download", report=report):
            if found := self.find():
                return found
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                run_with_progress(
                    [sys.executable, "-c", install, str(temporary), self._version],
                    what=f"downloading pulumi {self._version}",
                    limit_s=self._limit_s,
                    report=report,
                )
                cli_version(temporary / "bin" / "pulumi")
                shutil.rmtree(self._folder, ignore_errors=True)  # if it is there, `find` refused it
                temporary.replace(self._folder)
            except (CommandFailed, OSError) as error:
                raise Unavailable(str(error)) from error
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        if found := self.find():
            return found
        raise Unavailable(f"what it installed in {self._folder} has no pulumi-language-python")
