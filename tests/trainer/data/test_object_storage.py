"""Datasets in object storage, against a real S3 server on loopback (moto's)."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from tests.trainer.conftest import RECIPE
from tests.trainer.data.conftest import Run, contents
from trainer.__main__ import main
from trainer.config import Recipe
from trainer.data.opening import open_data
from trainer.errors import DataError
from trainer.recipe_file import load

SMALL = ("--shard-tokens", "10000")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def credentials(server: str) -> Iterator[None]:
    """In the environment, as a user has them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", server)
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        yield
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """s3://… of a place of its own."""
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture(scope="module")
def dataset(corpus: Path) -> str:
    """A finished dataset; copy it before damaging it."""
    assert main(["prepare", str(corpus), "--output", "s3://bucket/data", *SMALL, "--split-share", "0.1"]) == 0
    return "s3://bucket/data"


@pytest.fixture
def own_dataset(dataset: str, bucket: str) -> str:
    store = s3fs.S3FileSystem()
    for path in store.find(dataset):
        store.cp_file(path, f"{bucket}/data/{path.rpartition('/')[2]}")
    return f"{bucket}/data"


def recipe(url: str, cache: Path, *overrides: str) -> Recipe:
    sets = [f"data.path={url}", f"data.cache_dir={cache}", "data.source=shards", "data.sequence_length=16"]
    return load(RECIPE, [*sets, *overrides])


def read_all(chosen: Recipe) -> list[bytes]:
    """Every window of an epoch, in order."""
    data = open_data(chosen, vocabulary=chosen.model.vocabulary)
    rows = data.training.read(list(range(data.training.count)), size=data.training.count)[0]
    data.close()
    return [row.tobytes() for row in rows]


def cached(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.bin"))


def test_prepare_from_and_to_a_bucket_gives_the_same_bytes_as_on_a_disk(
    run: Run, bucket: str, corpus: Path, tmp_path: Path
) -> None:
    store = s3fs.S3FileSystem()
    store.put_file(str(corpus), f"{bucket}/in/corpus.jsonl")
    words = ["--workers", 2, *SMALL]
    code, _, problem = run("prepare", f"{bucket}/in", "--output", f"{bucket}/out", *words)
    assert code == 0, problem
    assert run("prepare", corpus, "--output", tmp_path / "out", *words)[0] == 0
    store.get(f"{bucket}/out/", str(tmp_path / "back"), recursive=True)
    here, there = contents(tmp_path / "out"), contents(tmp_path / "back")
    assert here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == ["manifest.json"]  # it names the inputs
    assert run("verify", f"{bucket}/out")[0] == 0
    assert "already prepared" in run("prepare", f"{bucket}/in", "--output", f"{bucket}/out", *words)[1]
    assert not store.find(f"{bucket}/out/.progress")


def test_streaming_from_a_bucket_reads_what_the_folder_has_and_downloads_it_once(
    run: Run, own_dataset: str, corpus: Path, tmp_path: Path
) -> None:
    assert run("prepare", corpus, "--output", tmp_path / "local", *SMALL, "--split-share", 0.1)[0] == 0
    expected = read_all(recipe(str(tmp_path / "local"), tmp_path))
    cache = tmp_path / "cache"
    assert read_all(recipe(own_dataset, cache)) == expected
    store = s3fs.S3FileSystem()
    for path in cached(cache):  # what is cached isn't asked for again
        store.rm_file(f"{own_dataset}/{path.name}")
    assert read_all(recipe(own_dataset, cache)) == expected


def test_only_the_shards_of_this_and_the_next_group_are_fetched(run: Run, bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}").write_text(f"{number} " * 100)
    assert run("prepare", folder, "--output", f"{bucket}/d", "--shard-tokens", 200, "--split-share", 0.1)[0] == 0
    chosen = recipe(f"{bucket}/d", tmp_path / "cache")
    data = open_data(chosen, vocabulary=257)
    data.training.read([0], size=1)
    data.close()
    assert 1 <= len(cached(tmp_path / "cache")) <= 16


def test_the_ranks_of_a_node_share_one_download(dataset: str, tmp_path: Path) -> None:
    """Ranks as threads: the lock is on an open file, so it keeps them apart as it does processes."""
    expected, barrier, read = read_all(recipe(dataset, tmp_path / "alone")), threading.Barrier(3), []

    def rank() -> None:
        barrier.wait(timeout=60)
        rows = read_all(recipe(dataset, tmp_path / "shared"))
        read.append((rows, [path.stat().st_ino for path in cached(tmp_path / "shared")]))

    ranks = [threading.Thread(target=rank) for _ in range(3)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert [rows for rows, _ in read] == [expected] * 3
    assert len({tuple(files) for _, files in read}) == 1  # the same files, not replaced by another rank's download
    assert not list((tmp_path / "shared").glob("*/.*.partial"))


def test_half_a_download_is_never_taken_for_a_shard(dataset: str, tmp_path: Path) -> None:
    chosen = recipe(dataset, tmp_path)
    expected = read_all(chosen)
    first, second, *_ = cached(tmp_path)
    first.rename(first.with_name(f".{first.name}.partial"))  # a rank was killed while it downloaded
    second.write_bytes(second.read_bytes()[:-2])  # a disk that lost the end
    assert read_all(chosen) == expected


@pytest.mark.parametrize(
    ("damage", "message"),
    [(lambda content: content[:-2], "bytes instead of"), (lambda content: content[:-1] + b"\xee", "another digest")],
)
def test_an_object_that_is_not_the_manifests_is_refused_by_its_url(
    own_dataset: str, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    store = s3fs.S3FileSystem()
    for path in store.glob(f"{own_dataset}/training-*.bin"):
        store.pipe_file(path, damage(store.cat_file(path)))
    with pytest.raises(DataError, match=message) as caught:
        read_all(recipe(own_dataset, tmp_path))
    assert f"{own_dataset}/training-" in str(caught.value)
    assert not cached(tmp_path)


def test_the_cache_keeps_to_its_size(dataset: str, tmp_path: Path) -> None:
    everything = read_all(recipe(dataset, tmp_path / "large"))
    whole = sum(path.stat().st_size for path in cached(tmp_path / "large"))
    limit = whole * 0.9
    chosen = recipe(dataset, tmp_path / "small", f"data.cache_gib={limit / 2**30}")
    assert read_all(chosen) == everything
    assert read_all(chosen) == everything


def test_a_missing_bucket_or_key_is_one_sentence_with_the_url(
    run: Run, bucket: str, corpus: Path, tmp_path: Path
) -> None:
    code, _, problem = run("prepare", corpus, "--output", "s3://no-such-bucket-here/data")
    assert code == DataError.exit_code
    assert "s3://no-such-bucket-here/data" in problem
    assert "there is no such bucket" in problem
    assert len(problem.splitlines()) == 1
    code, _, problem = run("prepare", f"{bucket}/nothing.jsonl", "--output", tmp_path / "out")
    assert code == DataError.exit_code
    assert f"{bucket}/nothing.jsonl" in problem
    with pytest.raises(DataError, match="no finished dataset"):
        read_all(recipe(f"{bucket}/empty", tmp_path))


def test_missing_credentials_are_one_sentence_with_what_to_set(
    run: Run, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    code, _, problem = run("verify", dataset)
    assert code == DataError.exit_code
    assert "AWS_ACCESS_KEY_ID" in problem
    assert len(problem.splitlines()) == 1
