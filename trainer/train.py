"""The training loop, read from top to bottom: resume, then step after step until the end or until asked to stop."""

import json
import math
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import optim
from trainer.checkpoint import Checkpoints
from trainer.checkpoint_files import write_atomically
from trainer.config import Recipe, accumulation_steps
from trainer.data.opening import Data, check_packing, open_together
from trainer.data.prefetch import Feed, StepData
from trainer.data.user_data import UserData, UserFeed
from trainer.distributed import Processes, processes
from trainer.errors import CheckpointError, ConfigError, NonFiniteLoss, Stopped
from trainer.loss import LossSum
from trainer.metrics import Metrics, progress_line
from trainer.models.build import build, check_fits, load_code, vocabulary
from trainer.randomness import seed_for
from trainer.strategies import Strategy, make_strategy


class StopFlag:
    """Set by SIGTERM or SIGINT; the handler does nothing else, because it may run at any point."""

    def __init__(self) -> None:
        self.raised = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)

    def _raise(self, number: int, frame: object) -> None:
        del number, frame
        self.raised = True


@dataclass
class Run:
    """What the loop works with; `step` and `samples_seen` are all the state outside model and optimizer."""

    recipe: Recipe
    here: Processes
    strategy: Strategy
    loss_sum: LossSum
    data: Data | UserData
    checkpoints: Checkpoints
    metrics: Metrics
    stop: StopFlag
    step: int = 0
    samples_seen: int = 0
    saved_step: int = -1
    loss: float = math.nan
    held_out_loss: float = math.nan

    def say(self, text: str) -> None:
        if self.here.rank == 0:
            print(text, flush=True)


def train(recipe: Recipe) -> None:
    """Trains to the recipe's last step. Raises TrainerError kinds, the same one on every rank."""
    stop = StopFlag()
    with processes() as here:
        accumulation_steps(recipe, here.world)  # refused before anything expensive starts
        run = _set_up(recipe, here, stop)
        try:
            _resume(run)
            if run.step >= recipe.training.steps:
                run.say(f"already finished: step {run.step} of {recipe.training.steps} is in {recipe.output}")
                return
            _loop(run)
            _finish(run)
        finally:
            run.metrics.close()
            run.data.close()


def _set_up(recipe: Recipe, here: Processes, stop: StopFlag) -> Run:
    code = load_code(recipe)
    if code is not None and recipe.data.source == "module":
        data: Data | UserData = UserData(recipe, code, here)
    else:
        data = open_together(recipe, here, vocabulary=vocabulary(recipe.model))
    strategy = make_strategy(here, recipe.strategy, precision=recipe.training.precision)

    def make_optimizer(parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        return optim.make_optimizer(recipe.optimizer, parameters)

    built = build(recipe, here.device, code=code, deferred=strategy.shards_parameters)
    check_packing(recipe.data, built.model)
    check_fits(built.model, ids=data.vocabulary, length=recipe.data.sequence_length)
    size = sum(weight.numel() for weight in built.model.parameters())
    strategy.prepare(built.model, make_optimizer)

    def say(text: str) -> None:
        if here.rank == 0:
            print(text, flush=True)

    checkpoints = Checkpoints(recipe.output, here, keep=recipe.checkpoint.keep, say=say)
    metrics = Metrics(recipe.output, active=here.rank == 0)
    run = Run(recipe, here, strategy, built.loss_sum, data, checkpoints, metrics, stop)
    say(f"{recipe.experiment}: {size:,} parameters, {here.world} ranks on {here.device.type}, {recipe.strategy.name}")
    metrics.event("start", 0, world=here.world, strategy=recipe.strategy.name, parameters=size)
    for note in data.notes:
        say(note)
    return run


def _resume(run: Run) -> None:
    recipe = run.recipe
    if recipe.resume == "never":
        run.checkpoints.start_afresh()
        return

    def check(manifest: dict[str, Any]) -> None:
        if manifest["config"].get("model") != recipe.model.model_dump(mode="json"):
            raise ConfigError(
                f"model: the recipe describes another model than step {manifest['step']} in {recipe.output}; "
                "use another output_dir, or resume: never."
            )
        if manifest.get("data_digest") != run.data.digest:
            run.say("note: the training documents are not those of the checkpoint")

    resumed = run.checkpoints.resume(run.strategy, check=check)
    if resumed is not None:
        run.step = run.saved_step = resumed.step
        run.samples_seen = resumed.manifest["samples_seen"]
        run.say(f"resumed from step {run.step}")
        run.metrics.event("resume", run.step, samples_seen=run.samples_seen)


def _loop(run: Run) -> None:
    with run.data.feed(run.recipe, rank=run.here.rank, world=run.here.world) as feed:
        _steps(run, feed)


def _steps(run: Run, feed: Feed | UserFeed) -> None:
    training, here = run.recipe.training, run.here
    began, first_step = time.monotonic(), run.step
    logged, logged_tokens = began, 0
    while run.step < training.steps:
        started, step = time.monotonic(), run.step + 1
        rate = optim.learning_rate(run.recipe, step)
        optim.set_learning_rate(run.strategy.optimizer, rate)
        data = feed.step(run.samples_seen)
        tokens = data.tokens
        local = _accumulate(run, data)
        # One small message a step: the loss for all, and whether anyone was asked to stop.
        run.loss, stops = here.sum(local, float(run.stop.raised))
        if not math.isfinite(run.loss):
            raise NonFiniteLoss(f"the loss is {run.loss} at step {step}; lower optimizer.learning_rate.")
        norm = run.strategy.clip_and_step(training.clip_norm)
        if not math.isfinite(norm):
            raise NonFiniteLoss(f"the gradient norm is {norm} at step {step}; lower optimizer.learning_rate.")
        run.step, run.samples_seen = step, run.samples_seen + training.global_batch_size
        now = time.monotonic()
        logged_tokens += tokens
        numbers = {"loss": run.loss, "learning_rate": rate, "gradient_norm": norm}
        speed = tokens / max(now - started, 1e-9)
        run.metrics.event("step", step, **numbers, tokens=tokens, tokens_per_s=speed, data_wait=data.waited_s)
        if step % training.log_every == 0 or step == training.steps:
            eta = (now - began) / (step - first_step) * (training.steps - step)
            speed = logged_tokens / max(now - logged, 1e-9)
            run.say(progress_line(step, training.steps, **numbers, tokens_per_s=speed, eta=eta))
            logged, logged_tokens = now, 0
        if step % training.evaluate_every == 0 or step == training.steps:
            _evaluate(run)
        if step % run.recipe.checkpoint.every_steps == 0 or step == training.steps or stops:
            _save(run)
        if stops and step < training.steps:
            raise Stopped(f"stopped at step {step} of {training.steps} with a checkpoint in {run.recipe.output}.")


def _accumulate(run: Run, data: StepData) -> float:
    """Gradients of the mean loss over the step's tokens; returns this rank's share of that loss."""
    here, total = run.here, torch.zeros((), device=run.here.device)
    for index, batch in enumerate(data.batches):
        # Ranks hold unequal numbers of valid tokens, and strategies average over ranks: world / tokens makes that
        # average the mean over all tokens of the step.
        scale = here.world / max(1, data.tokens)
        # What a forward pass draws (dropout) is the same in a resumed run.
        torch.manual_seed(seed_for(run.recipe.seed, data.start, index, here.rank))

        def forward(batch: Any = batch, scale: float = scale) -> Tensor:
            return _loss_sum(run, batch)[0] * scale

        total += run.strategy.backward(forward, last=index == len(data.batches) - 1)
    return float(total) / here.world


def _loss_sum(run: Run, batch: Any) -> tuple[Tensor, int]:
    """(summed loss, number of targets that count) of a micro-batch: nats, for a language model."""
    bf16 = run.recipe.training.precision == "bf16"
    with torch.autocast(run.here.device.type, dtype=torch.bfloat16, enabled=bf16):
        return run.loss_sum(run.strategy.module, batch, run.here.device)


def _evaluate(run: Run) -> None:
    """The mean loss over the held-out targets, divided over ranks."""
    here = run.here
    batches = run.data.held_out_batches(run.recipe, rank=here.rank, world=here.world)
    if batches is None:
        return
    run.strategy.module.eval()
    loss, tokens = 0.0, 0
    for batch, counts in batches:
        with torch.no_grad():
            summed, counted = _loss_sum(run, batch)
        loss, tokens = loss + float(summed) * counts, tokens + counted * counts
    run.strategy.module.train()
    loss, total = here.sum(loss, float(tokens))
    run.held_out_loss = loss / max(1.0, total)
    run.metrics.event("eval", run.step, loss=run.held_out_loss)
    run.say(f"step {run.step}/{run.recipe.training.steps}  held-out loss {run.held_out_loss:.4f}")


def _save(run: Run) -> None:
    if run.saved_step == run.step:
        return
    started = time.monotonic()
    facts = {
        "samples_seen": run.samples_seen,
        "world": run.here.world,
        "strategy": run.recipe.strategy.name,
        "config": run.recipe.model_dump(mode="json"),
        "data_digest": run.data.digest,
        "torch": torch.__version__,
    }
    run.checkpoints.save(run.step, run.strategy, facts=facts)
    run.saved_step = run.step
    run.metrics.event("checkpoint", run.step, seconds=time.monotonic() - started)


def _finish(run: Run) -> None:
    result = {
        "step": run.step,
        "steps": run.recipe.training.steps,
        "samples_seen": run.samples_seen,
        "loss": run.loss,
        "held_out_loss": run.held_out_loss if math.isfinite(run.held_out_loss) else None,
    }

    def write() -> None:
        if run.here.rank == 0:
            write_atomically(run.recipe.output / "finished.json", json.dumps(result, indent=1).encode())

    run.here.together(write, error=CheckpointError, what="write finished.json")
    run.metrics.event("finished", run.step, loss=run.loss, held_out_loss=run.held_out_loss)
    run.say(f"finished: step {run.step}, held-out loss {run.held_out_loss:.4f}")
