"""The sinks: one class each, made by name. A sink's methods run in its own thread, in order, and may raise anything."""

import hashlib
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from trainer import strict_json
from trainer.checkpoint_files import write_atomically
from trainer.config import Recipe
from trainer.metrics.redaction import redact_all
from trainer.metrics.schema import EVENTS

Record = dict[str, Any]


class Sink(Protocol):
    """Imports what it needs in `open`, so that a missing package is a sink's failure and not the run's."""

    def open(self) -> None: ...

    def write(self, record: Record) -> None:
        """One event, as in trainer.metrics.schema."""

    def close(self) -> None: ...


def make_sink(name: str, recipe: Recipe) -> Sink:
    sinks: dict[str, Callable[[Recipe], Sink]] = {
        "jsonl": Jsonl,
        "tensorboard": TensorBoard,
        "wandb": WandB,
        "mlflow": MLflow,
        "prometheus": Prometheus,
    }
    return sinks[name](recipe)


def _scalars(record: Record) -> dict[str, float]:
    """ "step/loss" and the like: what has a curve."""
    event = record["event"]
    skipped = ("event", "step", "time")
    return {
        f"{event}/{key}": float(value)
        for key, value in record.items()
        if key not in skipped and isinstance(value, (int, float)) and event not in ("start", "resume")
    }


class Jsonl:
    """metrics.jsonl: whole lines only. A record is one write; what a kill or a full disk cut off is taken away."""

    def __init__(self, recipe: Recipe) -> None:
        self._path = recipe.output / "metrics.jsonl"
        self._file: BinaryIO | None = None

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab+", buffering=0)
        self._file.truncate(_whole_lines(self._file))

    def write(self, record: Record) -> None:
        assert self._file is not None
        line = strict_json.encode(record).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        written = self._file.write(line)
        if written != len(line):
            self._file.truncate(end)
            raise OSError(f"{self._path}: the disk took only a part of a line")

    def close(self) -> None:
        assert self._file is not None
        self._file.close()


def _whole_lines(file: BinaryIO) -> int:
    """Size of the file up to its last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class TensorBoard:
    def __init__(self, recipe: Recipe) -> None:
        self._folder = recipe.output / "tensorboard"
        self._writer: Any = None

    def open(self) -> None:
        self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(self._folder))

    def write(self, record: Record) -> None:
        for key, value in _scalars(record).items():
            self._writer.add_scalar(key, value, record["step"], walltime=record["time"])

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases; its own environment variables say where and as whom. A resumed run goes on in the same one."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._run: Any = None

    def open(self) -> None:
        wandb: Any = importlib.import_module("wandb")
        os.environ.setdefault("WANDB_INIT_TIMEOUT", "30")  # seconds without its server
        folder = self._recipe.output.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", self._recipe.experiment),
            id=os.environ.get("WANDB_RUN_ID") or hashlib.sha256(str(folder).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(folder),
            config=redact_all(self._recipe.model_dump(mode="json")),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="optimizer_step")

    def write(self, record: Record) -> None:
        # several events share a step, and a resumed run repeats some: the step is an ordinary value there
        self._run.log({**_scalars(record), "optimizer_step": record["step"]})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, at MLFLOW_TRACKING_URI or in a file below output_dir. A resumed run goes on in the same one."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._output = recipe, recipe.output.resolve()
        self._client: Any = None
        self._id = ""

    def open(self) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            address = (self._output / "mlflow").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=address)
        note = self._output / "mlflow-run"
        if note.exists():
            self._id = note.read_text(encoding="utf-8").strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self._recipe.experiment)
        if experiment is None:
            experiment_id = self._client.create_experiment(self._recipe.experiment)
        else:
            experiment_id = experiment.experiment_id
        self._id = self._client.create_run(experiment_id).info.run_id
        self._output.mkdir(parents=True, exist_ok=True)
        write_atomically(note, self._id.encode())
        for key, value in _flat(redact_all(self._recipe.model_dump(mode="json"))).items():
            self._client.log_param(self._id, key, value)

    def write(self, record: Record) -> None:
        for key, value in _scalars(record).items():
            self._client.log_metric(self._id, key, value, int(record["time"] * 1000), record["step"])

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested keys as a.b."""
    flat: dict[str, str] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: str(item)}
    return flat


class Prometheus:
    """The newest numbers as a text file that appears whole, for node_exporter's textfile collector."""

    def __init__(self, recipe: Recipe) -> None:
        self._path = Path(recipe.metrics.prometheus_file or recipe.output / "metrics.prom")
        self._label = f'{{experiment="{recipe.experiment}"}}'  # a recipe's name holds nothing that needs escaping
        self._newest: dict[tuple[str, str], float] = {}
        self._written = 0.0

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, record: Record) -> None:
        for key, value in _scalars(record).items():
            event, _, field = key.partition("/")
            self._newest[event, field] = value
        self._newest["run", "step"] = record["step"]
        self._newest["run", "updated_timestamp_seconds"] = record["time"]
        if time.monotonic() - self._written >= 1.0:
            self._save()

    def close(self) -> None:
        self._save()

    def _save(self) -> None:
        lines = []
        for (event, field), value in self._newest.items():
            name = f"trainstack_{event}_{field}"
            known = EVENTS.get(event, {}).get(field)
            if known is not None:
                unit = f" ({known.unit})" if known.unit else ""
                lines.append(f"# HELP {name} {known.meaning}{unit}")
            lines += [f"# TYPE {name} gauge", f"{name}{self._label} {value!r}"]
        temporary = self._path.with_name(self._path.name + ".tmp")  # the collector reads *.prom alone
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(self._path)  # no fsync: after a power cut the numbers are old anyway
        self._written = time.monotonic()
