"""The steps from a machine that answers to one that can train, in their order; a new step is a file and a line here."""

from __future__ import annotations

from bootstrap.steps.base import Step
from bootstrap.steps.code import Code
from bootstrap.steps.environment import Environment
from bootstrap.steps.reach import Reach

STEPS: tuple[Step, ...] = (Reach(), Environment(), Code())
