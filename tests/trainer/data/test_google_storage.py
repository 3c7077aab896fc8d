"""Datasets under gs://, through gcsfs against a stand-in of the JSON API (Google's own service was not run)."""

from collections.abc import Iterator
from pathlib import Path

import gcsfs
import pytest

from tests.trainer.conftest import RECIPE
from tests.trainer.data.conftest import Run
from tests.trainer.data.gcs_stand_in import google_storage
from trainer.data import manifest
from trainer.data.opening import open_data
from trainer.data.storage import Folder
from trainer.errors import DataError
from trainer.recipe_file import load


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with google_storage("bucket") as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield address
        gcsfs.GCSFileSystem.clear_instance_cache()


def test_prepare_to_and_train_from_google_storage(run: Run, corpus: Path, tmp_path: Path) -> None:
    words = ["--shard-tokens", 20000, "--split-share", 0.1]
    code, _, problem = run("prepare", corpus, "--output", "gs://bucket/data", *words)
    assert code == 0, problem
    assert run("prepare", corpus, "--output", tmp_path / "local", *words)[0] == 0
    assert manifest.load(Folder("gs://bucket/data")) == manifest.load(Folder(str(tmp_path / "local")))
    assert run("verify", "gs://bucket/data")[0] == 0
    sets = ["data.path=gs://bucket/data", f"data.cache_dir={tmp_path / 'cache'}", "data.source=shards"]
    chosen = load(RECIPE, sets)
    remote = open_data(chosen, vocabulary=257)
    local = open_data(load(RECIPE, [f"data.path={tmp_path / 'local'}", "data.source=shards"]), vocabulary=257)
    rows = list(range(20))
    assert (remote.training.read(rows, size=20)[0] == local.training.read(rows, size=20)[0]).all()
    remote.close()


def test_a_missing_bucket_is_one_sentence(run: Run, corpus: Path) -> None:
    code, _, problem = run("prepare", corpus, "--output", "gs://other/data")
    assert code == DataError.exit_code
    assert "gs://other/data" in problem
    assert len(problem.splitlines()) == 1
