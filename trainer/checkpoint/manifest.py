"""The manifest: the file that makes a folder a checkpoint, written last; and what a folder without one is."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Any

from trainer import strict_json

MANIFEST = "manifest.json"
METADATA = ".metadata"
RANDOM = "random.safetensors"
VERSION = 2  # 1 had no "version" key
_STEP = re.compile(r"step-(\d{8,})")

Manifest = dict[str, Any]


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder's name stands for; None when it is no checkpoint's name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def encode(manifest: Manifest) -> bytes:
    return strict_json.encode(manifest, indent=1).encode()


def parse(data: bytes, *, step: int | None = None) -> Manifest:
    """The manifest in `data`. Raises ValueError with the rest of a sentence about manifest.json."""
    try:
        manifest = strict_json.decode(data)
    except ValueError:
        raise ValueError("is not valid JSON: it is damaged or cut short") from None
    version = manifest.get("version", 1) if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ValueError(f"has version {version}, and this trainer reads up to {VERSION}: use a newer one")
    if not _well_formed(manifest):
        raise ValueError("is not one of this trainer's manifests")
    if step is not None and manifest["step"] != step:
        raise ValueError(f"is that of step {manifest['step']}: the folder was renamed")
    return dict(manifest)


def _well_formed(manifest: Any) -> bool:
    return (
        isinstance(manifest, dict)
        and isinstance(manifest.get("step"), int)
        and isinstance(manifest.get("files"), dict)
        and METADATA in manifest["files"]
        and all(PurePosixPath(name).name == name for name in manifest["files"])
        and all(_is_entry(entry) for entry in manifest["files"].values())
        and isinstance(manifest.get("time"), float)
        and isinstance(manifest.get("samples_seen"), int)
        and isinstance(manifest.get("config"), dict)
    )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)


def accepts(expected: dict[str, Any], found: dict[str, Any] | None) -> bool:
    """Whether a file's size and digest are those of the manifest's entry, or of a replica that differed when saved."""
    if found is None or found["size"] != expected["size"]:
        return False
    return found["sha256"] == expected["sha256"] or found["sha256"] in expected.get("variants", ())


def foreign(names: Collection[str]) -> str:
    """What a folder without a manifest is, told from its file names: the end of "… is not a checkpoint: it "."""
    has = set(names)
    if not has:
        return "is empty"
    if "config.json" in has or any(name.endswith(".safetensors") for name in has):
        return "is a Hugging Face model folder; give it as checkpoint.initialise_from to start from its weights"
    if "latest" in has or any(name.startswith(("global_step", "mp_rank_")) for name in has):
        return "is DeepSpeed's own checkpoint; convert it with zero_to_fp32.py first"
    if METADATA in has:
        return "has torch's files but no manifest.json: its save did not end, or another program wrote it"
    if any(name.endswith((".pt", ".pth", ".bin", ".ckpt")) for name in has):
        return "holds files of torch.save, which may run code when opened; only this trainer's own are read"
    return f"has no {MANIFEST}"
