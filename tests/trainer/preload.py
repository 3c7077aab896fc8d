"""Imported by the process that ranks are forked from, and only there: all that a run imports, and no thread started."""

import os

os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 - deepspeed.initialize imports it, and a compiler

import trainer.strategies.ddp
import trainer.strategies.deepspeed
import trainer.strategies.fsdp
import trainer.strategies.single
import trainer.train  # noqa: F401
