"""Imported by the process that ranks are forked from, and only there: what every run imports, and no thread started."""

import os

from tests.trainer.ranks import end_with_parent

end_with_parent()
os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import pytest  # noqa: E402, F401 - what ranks call stands in modules of tests

import trainer.strategies.ddp  # noqa: E402
import trainer.strategies.fsdp  # noqa: E402
import trainer.strategies.single  # noqa: E402
import trainer.train  # noqa: E402, F401
