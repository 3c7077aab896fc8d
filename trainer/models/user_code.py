"""The user's own file, `model: {module: path/to/file.py}`: build_model, and if it wants build_data and loss.

    def build_model(config) -> nn.Module                      # needed
    def build_data(config, rank, world) -> iterable           # with data: {source: module}
    def build_evaluation_data(config, rank, world) -> iterable
    def loss(model, batch) -> Tensor | (Tensor, int)
    def count(batch) -> int

`config` is the whole recipe; the file's own keys are `config.model.options`. What each function must keep to is said
where it is called: build_model below, loss and count in trainer/loss.py, data in trainer/data/user_data.py.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

from trainer.errors import ConfigError, TrainerError

if TYPE_CHECKING:
    from trainer.config import Recipe

_FUNCTIONS = ("build_model", "build_data", "build_evaluation_data", "loss", "count")


class UserCode:
    """The loaded file. Its functions are called through `call`, so that an error names the file and the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._module = self._load()
        self.functions = {name for name in _FUNCTIONS if callable(getattr(self._module, name, None))}
        if "build_model" not in self.functions:
            raise ConfigError(f"model.module: {path} has no function build_model(config); write one.")

    def has(self, function: str) -> bool:
        return function in self.functions

    def call(self, function: str, *arguments: Any) -> Any:
        """What the user's function returns. Raises TrainerError naming file, line and cause of what it raises."""
        with self.errors_in(function):
            return getattr(self._module, function)(*arguments)

    def build_data(self, recipe: Recipe, rank: int, world: int, *, start: int) -> tuple[Any, bool]:
        """(what the user's function returns, whether it begins at sample `start` as it was told)."""
        seeks = "start" in inspect.signature(self._module.build_data).parameters
        return self.call("build_data", recipe, rank, world, *([start] if seeks else [])), seeks

    @contextmanager
    def errors_in(self, function: str) -> Iterator[None]:
        """For what belongs to the function but runs later, like a generator that it returned."""
        try:
            yield
        except TrainerError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() would end the run with a code that means something else
            raise TrainerError(self._sentence(function, error)) from error

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Called after seeding, with the same seed on every rank: random weights are the same everywhere."""
        model = self.call("build_model", recipe)
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise ConfigError(f"model.module: build_model in {self.path} returned {kind}, not a torch.nn.Module.")
        return model

    def _load(self) -> ModuleType:
        if not self.path.is_file():
            raise ConfigError(f"model.module: there is no file {self.path} in {Path.cwd()}; correct the path.")
        name = "trainer_user_code_" + hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:12]
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"model.module: {self.path} is not a Python file; its name must end in .py.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look their module up by name
        folder = str(self.path.resolve().parent)
        sys.path.insert(0, folder)  # as if Python had been started with this file: its neighbours can be imported
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ConfigError(self._sentence("import", error)) from error
        finally:
            sys.path.remove(folder)
        return module

    def place(self, function: str) -> str:
        """Where the function begins, for example "examples/vision.py line 10, in loss"."""
        code = getattr(getattr(self._module, function, None), "__code__", None)
        if code is None or Path(code.co_filename).resolve() != self.path.resolve():
            return f"{self.path}, in {function}"
        return f"{self.path} line {code.co_firstlineno}, in {function}"

    def _sentence(self, function: str, error: BaseException) -> str:
        """For example: examples/vision.py line 12, in loss: ValueError: expected 3 channels, got 1."""
        reason = " ".join(str(error).split()) or "no message"
        if isinstance(error, SyntaxError):
            line = f" line {error.lineno}" if error.lineno else ""
            return f"{error.filename or self.path}{line}: {type(error).__name__}: {error.msg}; correct the file."
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).resolve() == self.path.resolve()]
        where = f"{self.path} line {own[-1].lineno}, in {function}" if own else self.place(function)
        return f"{where}: {type(error).__name__}: {reason}; correct the file."
