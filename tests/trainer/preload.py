"""Imported by the process that ranks are forked from, and only there: what every run imports, and no thread started."""

import importlib
import os

from tests.trainer.ranks import end_with_parent

MODULES = (
    "trainer.recipe_file",
    "trainer.train",
    "trainer.strategies.ddp",
    "trainer.strategies.fsdp",
    "trainer.strategies.single",
    "torch._dynamo",  # by the first optimizer step
    "torch._inductor.test_operators",
    "torch.utils.tensorboard",  # by the first metrics, with the libraries of a cloud
    "pytest",  # by the modules of tests, in which what ranks call stands
)

end_with_parent()
os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
for name in MODULES:
    importlib.import_module(name)
