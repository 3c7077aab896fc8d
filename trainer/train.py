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
from torch.nn import functional
from torch.optim import Optimizer

from trainer import optim
from trainer.checkpoint import Checkpoints
from trainer.checkpoint_files import write_atomically
from trainer.config import Recipe, accumulation_steps
from trainer.data import sources
from trainer.data.baseline import held_out_windows
from trainer.data.batches import IGNORED, Windows, rank_counters
from trainer.distributed import Processes, processes
from trainer.errors import CheckpointError, ConfigError, NonFiniteLoss, Stopped
from trainer.metrics import Metrics, progress_line
from trainer.models.llama import Llama, wide
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
    corpus: sources.Corpus
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
        accumulation = accumulation_steps(recipe, here.world)
        run = _set_up(recipe, here, stop)
        try:
            _resume(run)
            if run.step >= recipe.training.steps:
                run.say(f"already finished: step {run.step} of {recipe.training.steps} is in {recipe.output}")
                return
            _loop(run, accumulation)
            _finish(run)
        finally:
            run.metrics.close()


def _set_up(recipe: Recipe, here: Processes, stop: StopFlag) -> Run:
    corpus = sources.load(recipe.data)
    digests = here.gather(corpus.digest)
    if len(set(digests)) > 1:
        other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
        raise ConfigError(f"data: rank 0 and rank {other} read different documents; give all nodes the same files.")
    torch.manual_seed(recipe.seed)  # the same weights on every rank, whatever the strategy
    strategy = make_strategy(here, recipe)

    def make_optimizer(parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        return optim.make_optimizer(recipe.optimizer, parameters)

    dtype = torch.float64 if recipe.training.precision == "float64" else torch.float32  # bf16 is a copy's affair
    model = Llama(recipe.model).to(here.device, dtype)
    size = sum(weight.numel() for weight in model.parameters())
    strategy.prepare(model, make_optimizer)

    def say(text: str) -> None:
        if here.rank == 0:
            print(text, flush=True)

    checkpoints = Checkpoints(recipe.output, here, keep=recipe.checkpoint.keep, say=say)
    metrics = Metrics(recipe.output, active=here.rank == 0)
    run = Run(recipe, here, strategy, corpus, checkpoints, metrics, stop)
    say(f"{recipe.experiment}: {size:,} parameters, {here.world} ranks on {here.device.type}, {recipe.strategy.name}")
    metrics.event("start", 0, world=here.world, strategy=recipe.strategy.name, parameters=size)
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
        if manifest.get("data_digest") != run.corpus.digest:
            run.say("note: the training documents are not those of the checkpoint")

    resumed = run.checkpoints.resume(run.strategy, check=check)
    if resumed is not None:
        run.step = run.saved_step = resumed.step
        run.samples_seen = resumed.manifest["samples_seen"]
        run.say(f"resumed from step {run.step}")
        run.metrics.event("resume", run.step, samples_seen=run.samples_seen)


def _loop(run: Run, accumulation: int) -> None:
    training, here = run.recipe.training, run.here
    windows = Windows(run.corpus.training, length=run.recipe.data.sequence_length, seed=run.recipe.seed)
    began, first_step = time.monotonic(), run.step
    logged, logged_tokens = began, 0
    while run.step < training.steps:
        started, step = time.monotonic(), run.step + 1
        rate = optim.learning_rate(run.recipe, step)
        optim.set_learning_rate(run.strategy.optimizer, rate)
        tokens = windows.valid_tokens(run.samples_seen, training.global_batch_size)
        local = _accumulate(run, windows, accumulation=accumulation, tokens=tokens)
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
        run.metrics.event("step", step, **numbers, tokens=tokens, tokens_per_s=tokens / max(now - started, 1e-9))
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


def _accumulate(run: Run, windows: Windows, *, accumulation: int, tokens: int) -> float:
    """Gradients of the mean loss over the step's `tokens`; returns this rank's share of that loss."""
    here, micro = run.here, run.recipe.training.micro_batch_size
    total = torch.zeros((), dtype=torch.float64, device=run.here.device)
    for index in range(accumulation):
        counters = rank_counters(run.samples_seen, micro=micro, index=index, rank=here.rank, world=here.world)
        batch = windows.read(counters, size=micro)
        # Ranks hold unequal numbers of valid tokens, and strategies average over ranks: world / tokens makes that
        # average the mean over all tokens of the step.
        scale = here.world / max(1, tokens)

        def forward(batch: Any = batch, scale: float = scale) -> Tensor:
            return _loss_sum(run, batch) * scale

        total += run.strategy.backward(forward, last=index == accumulation - 1)
    return float(total) / here.world


def _loss_sum(run: Run, batch: tuple[Any, Any]) -> Tensor:
    """Summed nats over the valid targets of a micro-batch."""
    inputs, targets = (torch.from_numpy(part).to(run.here.device, non_blocking=True) for part in batch)
    bf16 = run.recipe.training.precision == "bf16"
    with torch.autocast(run.here.device.type, dtype=torch.bfloat16, enabled=bf16):
        logits = run.strategy.module(inputs)
    # [batch, time, vocabulary] → [batch × time, vocabulary]
    return functional.cross_entropy(
        wide(logits.flatten(0, 1)), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def _evaluate(run: Run) -> None:
    """Mean nats per valid token over the held-out windows, divided over ranks."""
    here, micro = run.here, run.recipe.training.micro_batch_size
    windows, scored = held_out_windows(run.recipe, run.corpus)
    mine = list(range(here.rank, scored, here.world))
    loss, tokens = 0.0, 0
    # Every rank runs equally many forward passes, padded if need be: a sharded model needs all ranks in each.
    for start in range(0, -(-scored // here.world), micro):
        batch = windows.read(mine[start : start + micro], size=micro)
        with torch.no_grad():
            loss += float(_loss_sum(run, batch))
        tokens += int((batch[1] != IGNORED).sum())
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
        "data_digest": run.corpus.digest,
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
        "held_out_loss": run.held_out_loss,
    }

    def write() -> None:
        if run.here.rank == 0:
            write_atomically(run.recipe.output / "finished.json", json.dumps(result, indent=1).encode())

    run.here.together(write, error=CheckpointError, what="write finished.json")
    run.metrics.event("finished", run.step, loss=run.loss, held_out_loss=run.held_out_loss)
    run.say(f"finished: step {run.step}, held-out loss {run.held_out_loss:.4f}")
