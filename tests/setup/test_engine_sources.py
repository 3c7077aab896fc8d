"""Where the Pulumi CLI comes from: the order, the reasons, and a cache in which nothing half-made counts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.errors import EngineError
from infra.pulumi_engine import install
from infra.pulumi_engine.go_modules import VERSION, GoModules, go_version, required_go_version
from infra.pulumi_engine.layout import bin_folder
from infra.pulumi_engine.sources import Engine, OfficialInstaller, OnPath, Report, Unavailable


def program(path: Path, says: str = "") -> Path:
    """A shell script that prints `says`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


class Shelf:
    """A source with a fixed answer; notes that it was asked to get."""

    def __init__(self, name: str, *, has: Engine | None = None, gets: Engine | None = None, reason: str = "") -> None:
        self.name, self.has, self.gets, self.reason, self.asked = name, has, gets, reason, 0

    def find(self) -> Engine | None:
        return self.has

    def get(self, report: Report) -> Engine:
        self.asked += 1
        report(f"asking {self.name}")
        if self.gets is None:
            raise Unavailable(self.reason)
        return self.gets


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    names = ("pulumi", "pulumi-language-python")
    return Engine("3.272.0", {name: program(tmp_path / "engine" / name, "v3.272.0") for name in names})


def quiet(line: str) -> None:
    """No progress lines."""


# --- the order ---


def test_what_is_on_the_machine_is_taken_before_any_source_goes_to_the_network(tmp_path: Path, engine: Engine) -> None:
    first, second = Shelf("first", reason="far away"), Shelf("second", has=engine)
    pulumi = install(tmp_path / "root", quiet, sources=[first, second])
    assert pulumi.resolve() == engine.programs["pulumi"].resolve()
    assert (first.asked, second.asked) == (0, 0)


def test_sources_are_asked_in_order_until_one_gives(tmp_path: Path, engine: Engine) -> None:
    shelves = [Shelf("one", reason="no"), Shelf("two", gets=engine), Shelf("three", gets=engine)]
    install(tmp_path / "root", quiet, sources=shelves)
    assert [shelf.asked for shelf in shelves] == [1, 1, 0]


def test_when_all_fail_one_sentence_lists_each_with_its_reason_and_what_to_do(tmp_path: Path) -> None:
    shelves = [Shelf("a pulumi on PATH", reason="there is none"), Shelf("a build", reason="there is no go on PATH")]
    with pytest.raises(EngineError) as caught:
        install(tmp_path, quiet, sources=shelves)
    sentence = str(caught.value)
    assert "a pulumi on PATH (there is none), a build (there is no go on PATH)" in sentence
    assert "`make setup`" in sentence
    assert "\n" not in sentence
    assert not bin_folder(tmp_path).exists()


def test_programs_of_an_earlier_engine_do_not_stay_behind(tmp_path: Path, engine: Engine) -> None:
    script = program(tmp_path / "exec")
    built = Engine("3.274.1", {"pulumi": engine.programs["pulumi"]}, exec_script=script)
    install(tmp_path, quiet, sources=[Shelf("build", has=built)])
    assert {path.name for path in bin_folder(tmp_path).iterdir()} == {
        "pulumi",
        "pulumi-language-python",
        "pulumi-resource-pulumi-python",
    }
    install(tmp_path, quiet, sources=[Shelf("official", has=engine)])
    assert {path.name for path in bin_folder(tmp_path).iterdir()} == {"pulumi", "pulumi-language-python"}


# --- on PATH ---


@pytest.mark.parametrize(
    ("says", "host", "reason"),
    [
        ("v3.1.0", True, "is version 3.1.0"),
        ("v4.0.0", True, "is version 4.0.0"),
        ("v3.272.0", False, "has no pulumi-language-python"),
        ("hello", True, "names no version"),
    ],
)
def test_a_pulumi_on_path_that_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, says: str, host: bool, reason: str
) -> None:
    program(tmp_path / "pulumi", says)
    if host:
        program(tmp_path / "pulumi-language-python")
    with pytest.raises(Unavailable, match=reason):
        OnPath(f"{tmp_path}").get(quiet)


def test_a_fitting_pulumi_on_path_is_taken_with_its_language_host(tmp_path: Path) -> None:
    program(tmp_path / "pulumi", "v3.272.0")
    program(tmp_path / "pulumi-language-python")
    found = OnPath(f"/usr/bin:{tmp_path}").find()
    assert found is not None
    assert found.programs["pulumi-language-python"] == tmp_path / "pulumi-language-python"


def test_the_engine_of_an_activated_checkout_is_not_the_users_installation(tmp_path: Path) -> None:
    folder = tmp_path / ".trainstack/bin"
    program(folder / "pulumi", "v3.272.0")
    program(folder / "pulumi-language-python")
    assert OnPath(str(folder)).find() is None


# --- the official installer ---


def test_an_installer_that_cannot_be_reached_fails_with_its_address(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/install.sh"
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1.* can't be reached .*refused"):
            OfficialInstaller(tmp_path, url=url).get(quiet)


def test_an_installer_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/install.sh"
        with pytest.raises(Unavailable, match="took longer than"):
            OfficialInstaller(tmp_path, url=url, probe_limit_s=0.5).get(quiet)


# --- the build from Go modules, with a `go` that only pretends ---


class FakeGo:
    """A `go` that logs what it is asked, and "builds" a script that says a version."""

    def __init__(self, folder: Path, *, version: str = "go9.9.9", build: str = "exit 0", says: str = VERSION) -> None:
        self.log, self.folder = folder / "log", folder / "go-bin"
        program(folder / "sdk/python/cmd/pulumi-language-python-exec")
        go = program(self.folder / "go")
        go.write_text(f"""#!/bin/sh
echo "$1 $2" >> '{self.log}'
case "$1 $2" in
    "env GOVERSION") echo {version} ;;
    "list -m") echo '{folder}/sdk' ;;
    "build -v")
        while [ "$1" != -o ]; do shift; done
        printf '#!/bin/sh\\necho v{says}\\n' > "$2"; chmod +x "$2"
        {build} ;;
esac
""")

    @property
    def path(self) -> str:
        return f"{self.folder}:/usr/bin:/bin"

    def builds(self) -> int:
        return self.log.read_text().splitlines().count("build -v")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cache"
    yield folder
    assert not list(folder.glob("*/.*.part-*")), "a build left its work folder behind"


def test_a_build_is_cached_and_found_by_the_next_checkout(tmp_path: Path, cache: Path) -> None:
    go = FakeGo(tmp_path)
    built = GoModules(cache, path=go.path).get(quiet)
    assert GoModules(cache, path="").find() == built
    assert built.exec_script is not None
    assert built.exec_script.is_file()


@pytest.mark.parametrize("fault", ["build_fails_half_way", "build_is_of_another_version"])
def test_a_build_that_is_not_whole_never_gets_into_the_cache(tmp_path: Path, cache: Path, fault: str) -> None:
    go = FakeGo(tmp_path, build="echo no space >&2; exit 1") if "half" in fault else FakeGo(tmp_path, says="3.0.0")
    source = GoModules(cache, path=go.path)
    with pytest.raises(Unavailable, match=r"no space|3\.0\.0"):
        source.get(quiet)
    assert source.find() is None


def test_what_a_killed_build_left_is_removed_and_not_used(tmp_path: Path, cache: Path) -> None:
    source = GoModules(cache, path=FakeGo(tmp_path).path)
    final = Path(source.get(quiet).programs["pulumi"]).parent
    half = final.with_name(f".{final.name}.part-killed") / "gopath"
    half.mkdir(parents=True)
    (half / "file").write_text("x")
    half.chmod(0o500)  # as Go leaves its module cache
    (final / "pulumi").write_bytes(b"")
    assert source.find() is None
    assert source.get(quiet).version == VERSION


def test_two_builds_at_once_build_once(tmp_path: Path, cache: Path) -> None:
    go = FakeGo(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(lambda _: GoModules(cache, path=go.path).get(quiet), range(2)))
    assert engines[0] == engines[1]
    assert go.builds() == 1


def test_too_old_a_go_and_no_way_to_another_names_both(tmp_path: Path, cache: Path) -> None:
    go = FakeGo(tmp_path, version="go1.17.3")
    with pytest.raises(Unavailable, match=r"is go1\.17\.3, and .*uv can't be started"):
        GoModules(cache, path=go.path, uv=tmp_path / "uv").get(quiet)


def test_a_cache_that_cannot_be_written_is_a_reason() -> None:
    with pytest.raises(Unavailable, match=r"/proc/.* can't be written"):
        GoModules(Path("/proc/nowhere"), path=os.defpath).get(quiet)


def test_go_versions_are_compared_by_number() -> None:
    assert go_version("go1.26.10") > go_version("go1.26.9") > go_version("devel")
    assert required_go_version() >= (1, 26)
