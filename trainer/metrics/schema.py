"""Every event of a run with its fields and their units: what metrics.jsonl holds, one JSON object a line.

Each event also has `event`, `step` (the last optimizer step that it knows of) and `time` (Unix seconds on rank 0).
A number that isn't finite is null, because JSON has none. Figures are of all ranks together unless said otherwise.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    unit: str
    meaning: str
    optional: bool = False


_LOSS = Field("nats", "mean loss per target that counts, over the global batch")

EVENTS: dict[str, dict[str, Field]] = {
    "start": {
        "world": Field("ranks", "world size"),
        "strategy": Field("", "strategy.name"),
        "parameters": Field("parameters", "size of the model"),
        "device": Field("", "what each rank computes on"),
        "flops_per_token": Field("FLOP", "of forward and backward pass, PaLM's formula", optional=True),
        "peak_flops": Field("FLOP/s", "dense peak of one device at the run's precision", optional=True),
    },
    "resume": {
        "samples_seen": Field("samples", "read before, over all ranks"),
    },
    "step": {
        "loss": _LOSS,
        "learning_rate": Field("", "of this step"),
        "gradient_norm": Field("", "global, before clipping"),
        "tokens": Field("tokens", "targets that count in the global batch"),
        "tokens_per_s": Field("tokens/s", "whole run: tokens by this step's time"),
        "step_s": Field("s", "time of the step on rank 0, data wait included"),
        "data_wait_s": Field("s", "of which rank 0 waited for data"),
    },
    "window": {
        "tokens_per_s": Field("tokens/s", "whole run, since the window before, with pauses for saving and evaluation"),
        "tokens_per_s_per_rank": Field("tokens/s", "the same by the world size"),
        "step_s_p50": Field("s", "median step time of the window, on rank 0"),
        "step_s_p95": Field("s", "95th percentile of it"),
        "data_wait_s": Field("s", "waiting for data in the window, on the rank that waited longest"),
        "checkpoint_stall_s": Field("s", "time that the loop lost to checkpoints in the window"),
        "evaluation_s": Field("s", "time of evaluations in the window"),
        "memory_peak_bytes": Field("bytes", "largest of any rank: allocated on the GPU, or the process's on a CPU"),
        "bad_steps": Field("steps", "skipped since the first start"),
        "goodput": Field("", "share of the time since this start that went into steps that count"),
        "goodput_since_first_start": Field("", "since the run's first start, without steps that were lost"),
        "mfu": Field("", "model FLOP/s by the dense peak; none when either isn't known", optional=True),
    },
    "bad_step": {
        "reason": Field("", "what was wrong"),
        "loss": _LOSS,
        "gradient_norm": Field("", "null when the loss was bad already", optional=True),
        "in_a_row": Field("steps", "bad ones, this one included"),
        "total": Field("steps", "bad ones since the first start"),
    },
    "eval": {
        "loss": Field("nats", "mean loss per target that counts, over the held-out samples"),
        "seconds": Field("s", "time of the evaluation"),
    },
    "checkpoint": {
        "seconds": Field("s", "from the wish to save to the complete checkpoint"),
        "stall_s": Field("s", "of which training stood still"),
    },
    "stop": {
        "reason": Field("", "why the ranks stopped before the last step"),
    },
    "finished": {
        "loss": _LOSS,
        "held_out_loss": Field("nats", "of the last evaluation"),
    },
}
