"""torch's flight recorder: the last collectives of each rank, with their sizes and whether they ended."""

import os
from pathlib import Path

from torch._C import _distributed_c10d as c10d  # it has no public name

from trainer import strict_json


def enable() -> None:
    """Called before the process group is made. The user's own setting stays."""
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # collectives a rank


def dump(output: Path, rank: int) -> Path | None:
    """Writes <output>/stalls/rank-<rank>.json, by backend; None when none of them recorded anything."""
    traces = {"gloo": c10d._dump_fr_trace_json(backend="gloo")}
    dump_nccl = getattr(c10d, "_dump_nccl_trace_json", None)  # a build without NCCL has none
    if dump_nccl is not None:
        traces["nccl"] = dump_nccl()
    parsed = {name: strict_json.decode(text) for name, text in traces.items() if text}
    recorded = {name: trace for name, trace in parsed.items() if trace.get("entries")}
    if not recorded:
        return None
    path = output / "stalls" / f"rank-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(strict_json.encode(recorded, indent=1), encoding="utf-8")
    return path
