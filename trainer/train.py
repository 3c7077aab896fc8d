"""The training loop, read from top to bottom: resume, then step after step until the end or until asked to stop."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import optim, schedule, strict_json
from trainer.agreement import check_alike
from trainer.checkpoint import Checkpoints, compatibility, held_parameters
from trainer.checkpoint_files import write_atomically
from trainer.config import Recipe, accumulation_steps
from trainer.data.opening import Data, check_packing, open_together
from trainer.data.prefetch import Feed, StepData
from trainer.data.user_data import UserData, UserFeed
from trainer.distributed import Processes, processes
from trainer.errors import CheckpointError, Stopped
from trainer.initial_weights import initialise
from trainer.loss import LossSum
from trainer.metrics import Metrics, hardware
from trainer.metrics.meter import Meter
from trainer.metrics.profiler import Profiler
from trainer.metrics.progress import Progress, progress_line
from trainer.models.build import build, check_fits, check_same, load_code, vocabulary
from trainer.models.flops import flops_per_token
from trainer.randomness import seed_for
from trainer.strategies import Strategy, make_strategy
from trainer.watch.bad_steps import BadSteps
from trainer.watch.stop import StopFlag
from trainer.watch.watchdog import DATA, EVALUATION, GRADIENTS, READY, SAVE, START, UPDATE, Watchdog


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
    meter: Meter
    progress: Progress
    stop: StopFlag
    watchdog: Watchdog
    bad_steps: BadSteps
    step: int = 0
    samples_seen: int = 0
    saved_step: int = -1
    loss: float = math.nan
    held_out_loss: float = math.nan
    evaluated_step: int = -1

    def say(self, text: str) -> None:
        self.progress.say(text)

    def stop_wanted(self) -> bool:
        """Whether any rank was asked to stop: the same answer on all ranks, which ask at the same point."""
        return self.here.sum(float(self.stop.raised))[0] > 0


def train(recipe: Recipe) -> None:
    """Trains to the recipe's last step. Raises TrainerError kinds, the same one on every rank."""
    patience = 4 * recipe.watch.stall_s  # the watchdog, which names the rank at fault, comes before a time-out
    with StopFlag() as stop, processes(timeout_s=max(600.0, patience)) as here:
        # refused before anything expensive starts
        check_alike(recipe, here)
        accumulation_steps(recipe, here.world)
        with Watchdog(here, recipe.watch, stop, output=recipe.output) as watchdog:
            run = _set_up(recipe, here, stop, watchdog)
            try:
                _resume(run)
                if run.step >= recipe.training.steps and _is_finished(run):
                    run.say(f"already finished: step {run.step} of {recipe.training.steps} is in {recipe.output}")
                    return
                _forget_result(run)
                _loop(run)
                _finish(run)
            finally:
                watchdog.at(SAVE, run.step)  # the end waits for a save in the background, also after an error
                run.checkpoints.close()
                run.metrics.close()
                run.data.close()


def _set_up(recipe: Recipe, here: Processes, stop: StopFlag, watchdog: Watchdog) -> Run:
    watchdog.at(START, 0)
    progress = Progress(active=here.rank == 0)
    code = load_code(recipe)
    if code is not None and recipe.data.source == "module":
        data: Data | UserData = UserData(recipe, code, here, say=progress.say)
    else:
        data = open_together(recipe, here, vocabulary=vocabulary(recipe.model))
    strategy = make_strategy(here, recipe)
    hardware.check_precision(here, recipe.training.precision)

    def make_optimizer(parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        return optim.make_optimizer(recipe.optimizer, parameters)

    built = build(recipe, here.device, code=code, deferred=strategy.shards_parameters)
    check_packing(recipe.data, built.model)
    check_same(built.model, here)
    check_fits(built.model, ids=data.vocabulary, length=recipe.data.sequence_length)
    size = sum(weight.numel() for weight in built.model.parameters())
    device = hardware.device_name(here.device)
    meter = Meter(
        world=here.world,
        positions_per_step=recipe.training.global_batch_size * recipe.data.sequence_length,
        flops_per_token=flops_per_token(built.model, recipe.data.sequence_length),
        peak_flops=hardware.peak_flops(device, recipe.training.precision),
    )
    start_from = recipe.checkpoint.initialise_from
    if start_from and not strategy.shards_parameters:
        initialise(built.model, recipe.model, Path(start_from))
    strategy.prepare(built.model, make_optimizer)
    if start_from and strategy.shards_parameters:  # had no memory before; each rank takes its own part
        initialise(strategy.module, recipe.model, Path(start_from))
    checkpoints = Checkpoints(recipe.output, here, recipe.checkpoint, say=progress.say)
    checkpoints.require_room(held=held_parameters(strategy.module), model=size)
    metrics = Metrics(recipe, active=here.rank == 0)
    bad_steps = BadSteps(recipe.watch)
    run = Run(
        recipe, here, strategy, built.loss_sum, data, checkpoints, metrics, meter, progress, stop, watchdog, bad_steps
    )
    name = recipe.strategy.name
    run.say(f"{recipe.experiment}: {size:,} parameters, {here.world} ranks on {here.device.type}, {name}")
    batch, micro = recipe.training.global_batch_size, recipe.training.micro_batch_size
    micro_batches = accumulation_steps(recipe, here.world)
    run.say(f"a step is {batch} samples = {micro} in a micro-batch × {micro_batches} in a row × {here.world} ranks")
    metrics.event(
        "start",
        0,
        world=here.world,
        strategy=name,
        parameters=size,
        device=device,
        flops_per_token=meter.flops_per_token,
        peak_flops=meter.peak_flops,
    )
    for note in data.notes:
        run.say(note)
    return run


def _resume(run: Run) -> None:
    recipe = run.recipe
    if recipe.resume == "never" and run.checkpoints.start_afresh():
        return

    def check(manifest: dict[str, Any]) -> None:
        compatibility.check(manifest, recipe, data_digest=run.data.digest, say=run.say)

    wanted = "auto" if recipe.resume == "never" else recipe.resume
    resumed = run.checkpoints.resume(run.strategy, wanted=wanted, check=check)
    if resumed is None:
        run.say(f"starts at step 0: there is no checkpoint in {recipe.checkpoint.location or recipe.output}")
    else:
        run.step = run.saved_step = resumed.step
        run.samples_seen = resumed.manifest["samples_seen"]
        if "goodput" in resumed.manifest:
            run.meter.resume(resumed.manifest["goodput"])
            run.bad_steps.resume(resumed.manifest["bad_steps"])
        run.loss = strict_json.number(resumed.manifest.get("loss"))
        run.held_out_loss = strict_json.number(resumed.manifest.get("held_out_loss"))
        run.evaluated_step = run.step if math.isfinite(run.held_out_loss) else -1
        run.say(f"resumed from step {run.step}")
        run.metrics.event("resume", run.step, samples_seen=run.samples_seen)


def _loop(run: Run) -> None:
    profiler = Profiler(run.recipe.output, run.recipe.metrics.profile, rank=run.here.rank)
    began, first_step = time.monotonic(), run.step
    try:
        with run.data.feed(run.recipe, rank=run.here.rank, world=run.here.world) as feed:
            if run.step and run.evaluated_step != run.step:
                _evaluate_if_due(run)  # stopped in the middle of it
            while run.step < run.recipe.training.steps:
                profiler.before(run.step + 1)
                numbers = _step(run, feed)
                profiler.after(run.step)
                if numbers is not None:
                    left = (time.monotonic() - began) / (run.step - first_step) * (run.recipe.training.steps - run.step)
                    _report(run, numbers, eta=left)
                _evaluate_and_save(run)
    finally:
        profiler.close(run.step)


def _step(run: Run, feed: Feed | UserFeed) -> dict[str, float] | None:
    """One optimizer step; its numbers, or None when it was bad and skipped. Raises Stopped before it has begun."""
    training, here, started, step = run.recipe.training, run.here, time.monotonic(), run.step + 1
    run.watchdog.at(DATA, step)
    # All of a rank's data is there before anything that needs all ranks begins: a rank that waits can still stop.
    data = feed.step(
        run.samples_seen, give_up=lambda: run.stop.raised, after_reading=lambda: run.watchdog.at(READY, step)
    )
    if run.stop_wanted() or data is None:
        _stop(run)
    rate = schedule.learning_rate(run.recipe, step)
    optim.set_learning_rate(run.strategy.optimizer, rate)
    local, norm = _accumulate(run, data), math.nan
    run.watchdog.at(UPDATE, step)
    loss, failed = here.sum(local, float(run.checkpoints.failed))
    if failed:  # a save in the background, on any rank: all raise what went wrong
        run.checkpoints.wait()
    problem = run.bad_steps.problem(loss)
    if problem:
        run.strategy.discard_gradients()
    else:
        norm = run.strategy.clip_and_step(training.clip_norm)  # leaves the weights alone unless the norm is finite
        problem = None if math.isfinite(norm) else f"the gradient norm is {norm}"
    seconds = time.monotonic() - started
    if problem:
        _bad_step(run, step, problem, loss=loss, norm=norm)
        return None
    run.bad_steps.good(loss)
    run.meter.step(seconds, tokens=data.tokens, data_wait_s=data.waited_s)
    run.step, run.samples_seen, run.loss = step, run.samples_seen + training.global_batch_size, loss
    numbers = {"loss": loss, "learning_rate": rate, "gradient_norm": norm}
    speed = {"tokens_per_s": data.tokens / max(seconds, 1e-9), "step_s": seconds, "data_wait_s": data.waited_s}
    run.metrics.event("step", step, **numbers, tokens=data.tokens, **speed)
    return numbers | speed


def _stop(run: Run) -> NoReturn:
    """All ranks at once: a checkpoint of what is finished, then the end."""
    reason = next(reason for reason in run.here.gather(run.stop.reason) if reason)
    run.metrics.event("stop", run.step, reason=reason)
    _save(run)
    run.checkpoints.wait()
    _report_saved(run)
    run.stop.served()
    steps, output = run.recipe.training.steps, run.recipe.output
    raise Stopped(f"stopped at step {run.step} of {steps} with a checkpoint in {output} ({reason}).")


def _bad_step(run: Run, step: int, problem: str, *, loss: float, norm: float) -> None:
    """Goes on with the next data, weights as they were. Raises BadStep when the recipe wants the end instead."""
    counted = {"in_a_row": run.bad_steps.in_a_row + 1, "total": run.bad_steps.total + 1}
    run.metrics.event("bad_step", step, reason=problem, loss=loss, gradient_norm=norm, **counted)
    run.bad_steps.bad(step, problem)
    run.say(f"bad step {step} skipped: {problem}; {counted['in_a_row']} in a row, {counted['total']} in all")
    run.step, run.samples_seen = step, run.samples_seen + run.recipe.training.global_batch_size


def _report(run: Run, numbers: dict[str, float], *, eta: float) -> None:
    step, training = run.step, run.recipe.training
    keep = step % training.log_every == 0 or step == training.steps
    if keep:
        wait, memory = run.here.maximum(run.meter.data_wait_s, float(hardware.memory_peak(run.here.device)))
        figures = {**run.meter.window(), "data_wait_s": wait, "memory_peak_bytes": int(memory)}
        run.metrics.event("window", step, **figures, bad_steps=run.bad_steps.total)
        numbers = numbers | figures
    run.progress.step(progress_line(step, training.steps, **numbers, eta=eta), keep=keep)


def _evaluate_if_due(run: Run) -> None:
    if run.step % run.recipe.training.evaluate_every == 0 or run.step == run.recipe.training.steps:
        _evaluate(run)


def _evaluate_and_save(run: Run) -> None:
    step, training = run.step, run.recipe.training
    _evaluate_if_due(run)
    if step % run.recipe.checkpoint.every_steps == 0 or step == training.steps:
        _save(run)
    _report_saved(run)


def _accumulate(run: Run, data: StepData) -> float:
    """Gradients of the mean loss over the step's tokens; returns this rank's share of that loss."""
    here, total = run.here, torch.zeros((), dtype=torch.float64, device=run.here.device)
    # Ranks hold unequal numbers of valid tokens, and strategies average over ranks: world / tokens makes that average
    # the mean over all tokens of the step.
    scale = here.world / max(1, data.tokens)
    for index, batch in enumerate(data.batches):
        run.watchdog.at(GRADIENTS, run.step + 1)
        # What a forward pass draws (dropout) is the same in a resumed run.
        torch.manual_seed(seed_for(run.recipe.seed, data.start, index, here.rank))

        def forward(batch: Any = batch) -> Tensor:
            return _loss_sum(run, batch)[0] * scale

        total += run.strategy.backward(forward, last=index == len(data.batches) - 1)
    return float(total) / here.world


def _loss_sum(run: Run, batch: Any) -> tuple[Tensor, int]:
    """(summed loss, number of targets that count) of a micro-batch: nats, for a language model."""
    bf16 = run.recipe.training.precision == "bf16"
    with torch.autocast(run.here.device.type, dtype=torch.bfloat16, enabled=bf16):
        return run.loss_sum(run.strategy.module, batch, run.here.device)


def _evaluate(run: Run) -> None:
    """The mean loss over the held-out targets, divided over ranks. Raises Stopped in between."""
    here, started = run.here, time.monotonic()
    batches = run.data.held_out_batches(run.recipe, rank=here.rank, world=here.world)
    if batches is None:
        return
    loss, tokens = 0.0, 0
    run.strategy.module.eval()
    with run.meter.pause("evaluation_s"):
        for batch, counts in batches:
            run.watchdog.at(EVALUATION, run.step)
            if run.stop_wanted():
                _stop(run)
            with torch.no_grad():
                summed, counted = _loss_sum(run, batch)
            loss, tokens = loss + float(summed) * counts, tokens + counted * counts
        loss, total = here.sum(loss, float(tokens))
    run.strategy.module.train()
    run.held_out_loss, run.evaluated_step = loss / max(1.0, total), run.step
    run.metrics.event("eval", run.step, loss=run.held_out_loss, seconds=time.monotonic() - started)
    run.say(f"step {run.step}/{run.recipe.training.steps}  held-out loss {run.held_out_loss:.4f}")


def _save(run: Run) -> None:
    if run.saved_step == run.step:
        return
    facts = {
        "samples_seen": run.samples_seen,
        "world": run.here.world,
        "strategy": run.recipe.strategy.name,
        "config": run.recipe.model_dump(mode="json"),
        "data_digest": run.data.digest,
        "torch": torch.__version__,
        "goodput": run.meter.facts(),
        "bad_steps": run.bad_steps.facts(),
        "loss": run.loss,
        "held_out_loss": run.held_out_loss if run.evaluated_step == run.step else None,
    }
    run.watchdog.at(SAVE, run.step)
    with run.meter.pause("checkpoint_stall_s"):
        run.checkpoints.save(run.step, run.strategy, facts=facts)
    run.saved_step = run.step


def _report_saved(run: Run) -> None:
    """A "checkpoint" event is written when the checkpoint is complete on all nodes, some steps after its own."""
    for saved in run.checkpoints.completed():
        run.metrics.event("checkpoint", saved.step, seconds=saved.seconds, stall_s=saved.stall_s)


def _is_finished(run: Run) -> bool:
    """Whether an earlier start wrote the result of this step, as rank 0 sees it."""

    def written() -> bool:
        path = run.recipe.output / "finished.json"
        return path.exists() and f'"step": {run.step},'.encode() in path.read_bytes()

    finished = run.here.together(written, error=CheckpointError, what="read finished.json")
    return run.here.from_rank(finished if run.here.rank == 0 else None, source=0)


def _forget_result(run: Run) -> None:
    """finished.json of a shorter plan, or of a run before resume: never, would pass for this run's."""

    def remove() -> None:
        if run.here.rank == 0:
            (run.recipe.output / "finished.json").unlink(missing_ok=True)

    run.here.together(remove, error=CheckpointError, what="remove the earlier finished.json")


def _finish(run: Run) -> None:
    run.watchdog.at(SAVE, run.step)
    run.checkpoints.wait()
    _report_saved(run)
    run.bad_steps.end(run.step, held_out_loss=run.held_out_loss if run.evaluated_step == run.step else None)
    result = {
        "step": run.step,
        "steps": run.recipe.training.steps,
        "samples_seen": run.samples_seen,
        "loss": run.loss,
        "held_out_loss": run.held_out_loss,
    }

    def write() -> None:
        if run.here.rank == 0:
            write_atomically(run.recipe.output / "finished.json", strict_json.encode(result, indent=1).encode())

    run.here.together(write, error=CheckpointError, what="write finished.json")
    run.metrics.event("finished", run.step, loss=run.loss, held_out_loss=run.held_out_loss)
    scored = f", held-out loss {run.held_out_loss:.4f}" if math.isfinite(run.held_out_loss) else ""
    run.say(f"finished: step {run.step}{scored}")
