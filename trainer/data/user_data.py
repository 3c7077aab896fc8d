"""Data of the user's own file, `data: {source: module}`.

`build_data(config, rank, world)` returns an iterable of this rank's micro-batches, each of
`config.training.micro_batch_size` rows: arrays, tensors, or tuples, lists or dictionaries of them. At its end it is
iterated again. For results that don't depend on the number of ranks, micro-batch k of a rank holds the samples from
(k × world + rank) × rows on. With a fourth parameter named `start` it is told how many samples, over all ranks, were
trained on before, and begins there; without it, a resumed run reads and drops what came before.

`build_evaluation_data(config, rank, world)` returns a finite iterable of micro-batches; without it there is no
evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainer.data.prefetch import StepData
from trainer.errors import ConfigError, TrainerError
from trainer.loss import digest, user_count
from trainer.models.user_code import UserCode

if TYPE_CHECKING:
    from trainer.config import Recipe
    from trainer.distributed import Processes


class UserData:
    """Takes the place of trainer.data.opening.Data."""

    digest = ""  # unknown: a resumed run can't tell whether the data is the same
    vocabulary = 0  # unknown: there are no ids to compare with the model's
    notes = ()

    def __init__(self, recipe: Recipe, code: UserCode, here: Processes, *, say: Callable[[str], None]) -> None:
        if not code.has("build_data"):
            raise ConfigError(f"data.source module: {code.path} has no function build_data; write one.")
        self._recipe, self._code, self._here, self._say = recipe, code, here, say
        self._evaluation: list[Any] | None = None

    def feed(self, recipe: Recipe, *, rank: int, world: int) -> UserFeed:
        del recipe, rank, world  # known since the start
        return UserFeed(self._recipe, self._code, self._here, say=self._say)

    def held_out_batches(self, recipe: Recipe, *, rank: int, world: int) -> Iterator[tuple[Any, bool]] | None:
        """As Data's; None without build_evaluation_data. Called by all ranks together."""
        del recipe, rank, world
        if not self._code.has("build_evaluation_data"):
            return None
        if self._evaluation is None:  # read once: an evaluation is the same each time
            self._evaluation = self._read_evaluation()
        counts = self._here.gather(len(self._evaluation))
        if 0 in counts:
            raise TrainerError(
                f"{self._code.path}: build_evaluation_data gave rank {counts.index(0)} nothing; "
                "give each rank at least one micro-batch, or leave the function out."
            )
        mine = [(batch, True) for batch in self._evaluation]
        return iter(mine + [(mine[-1][0], False)] * (max(counts) - len(mine)))

    def close(self) -> None: ...

    def _read_evaluation(self) -> list[Any]:
        training, here = self._recipe.training, self._here
        limit = training.evaluation_batches * _micro_batches(self._recipe, here.world)
        batches = self._code.call("build_evaluation_data", self._recipe, here.rank, here.world)
        with self._code.errors_in("build_evaluation_data"):
            return list(islice(batches, limit))


class UserFeed:
    """Takes the place of trainer.data.prefetch.Feed. A step's micro-batches are read before its first forward pass,
    because the number of its targets, over all ranks, has to be known by then."""

    def __init__(self, recipe: Recipe, code: UserCode, here: Processes, *, say: Callable[[str], None]) -> None:
        self._recipe, self._code, self._here, self._say = recipe, code, here, say
        self._count = user_count(code)
        self._micro_batches = _micro_batches(recipe, here.world)
        self._next: int | None = None  # the sample at which the iterator stands
        self._iterable: Iterable[Any] = ()
        self._iterator: Iterator[Any] = iter(())

    def __enter__(self) -> UserFeed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def step(self, start: int, *, give_up: Callable[[], bool], after_reading: Callable[[], None]) -> StepData | None:
        """The step that begins at sample `start`. Called by all ranks together.

        The user's iterator can't be interrupted, so `give_up` changes nothing here.
        """
        del give_up
        began = time.perf_counter()
        if start != self._next:
            self._open(start)
        batches = tuple(self._batch() for _ in range(self._micro_batches))
        waited_s = time.perf_counter() - began
        after_reading()
        if self._next is None:
            self._compare(batches[0])
        (targets,) = self._here.sum(float(sum(self._count(batch) for batch in batches)))
        self._next = start + self._recipe.training.global_batch_size
        return StepData(start, int(targets), batches, waited_s)

    def _compare(self, batch: Any) -> None:
        """Says when ranks begin with the same samples, which takes as long as reading others and teaches less."""
        found = self._here.gather(digest(batch))
        for rank, value in enumerate(found):
            first = found.index(value)
            if value is not None and first != rank:
                self._say(
                    f"note: {self._code.path}: build_data gave ranks {first} and {rank} the same first micro-batch; "
                    "unless that is meant, let it choose by its arguments rank and world"
                )
                return

    def _open(self, start: int) -> None:
        here = self._here
        self._iterable, seeks = self._code.build_data(self._recipe, here.rank, here.world, start=start)
        self._iterator = self._begin()
        if not seeks:
            for _ in range(start // (self._recipe.training.micro_batch_size * here.world)):
                self._batch()

    def _begin(self) -> Iterator[Any]:
        with self._code.errors_in("build_data"):
            return iter(self._iterable)

    def _batch(self) -> Any:
        """The next micro-batch; at the end, the first one again."""
        for _ in range(2):
            with self._code.errors_in("build_data"):
                for batch in self._iterator:
                    return batch
            self._iterator = self._begin()
        raise TrainerError(
            f"{self._code.path}: build_data gave rank {self._here.rank} an iterable that is empty or ends for good; "
            "return one that can be iterated again, such as a list or an object with __iter__, or an endless one."
        )


def _micro_batches(recipe: Recipe, world: int) -> int:
    """Micro-batches of a rank in a step."""
    return recipe.training.global_batch_size // (recipe.training.micro_batch_size * world)
