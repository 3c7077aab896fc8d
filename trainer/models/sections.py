"""The recipe's `model` section: the built-in Llama, a Hugging Face causal LM, or the user's own file; no torch."""

from __future__ import annotations

import difflib
import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from trainer.fields import AboveZero, Positive, Section, Text
from trainer.models.presets import PRESETS


class RopeScaling(Section):
    """Llama 3.1's stretching of the slow rotary frequencies, for contexts longer than the `original_length`."""

    factor: AboveZero
    """How many times longer the context gets."""
    low_frequency_factor: AboveZero = 1.0
    """Waves that turn fewer times than this in original_length are stretched by the whole factor."""
    high_frequency_factor: AboveZero = 4.0
    """Waves that turn more often than this in it are left alone; in between the stretch passes over."""
    original_length: Positive = 8192
    """Context length before, in tokens."""

    @model_validator(mode="after")
    def _order(self) -> RopeScaling:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError("high_frequency_factor must be above low_frequency_factor")
        return self


class LlamaSection(Section):
    """The built-in Llama. A preset fills in what the recipe doesn't say; it isn't recorded, its shape is."""

    preset: Text | None = Field(
        default=None,
        exclude=True,
        description=f"A published shape that fills in the other keys of the section: {', '.join(PRESETS)}.",
    )
    layers: Positive
    """Blocks of attention and feed-forward."""
    width: Positive
    """Of the residual stream; a multiple of 2 × heads."""
    heads: Positive
    """Query heads."""
    kv_heads: Positive
    """Key and value heads; they divide the query heads."""
    hidden: Positive | None = None
    """Width of the feed-forward part; default: 8/3 of the width, rounded up to 32."""
    vocabulary: Positive = 257
    """Token ids; 257 are 256 bytes and the document separator."""
    rope_theta: AboveZero = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    norm_eps: AboveZero = 1e-5
    """Added to the mean square in RMSNorm."""
    tie_embeddings: bool = False
    """The output layer uses the embedding's weights."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        name = values.get("preset") if isinstance(values, dict) else None
        if not isinstance(name, str):
            return values
        if name not in PRESETS:
            close = difflib.get_close_matches(name, PRESETS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(PRESETS)}"
            raise ValueError(f"there is no preset {name!r}; {hint}")
        return {**PRESETS[name], **values}

    @model_validator(mode="after")
    def _shapes(self) -> LlamaSection:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} must be a multiple of 2 × heads = {2 * self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")
        return self

    @property
    def feed_forward(self) -> int:
        return self.hidden or -(-8 * self.width // 3 // 32) * 32


class HuggingFaceSection(Section):
    """Any causal LM of `transformers`, from a local folder or the hub; code from the hub is never run."""

    huggingface: Text
    """Folder with config.json, or hub name."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """random needs no weights in the folder."""


def _with_numbers(value: Any) -> Any:
    """Options have no declared types: text that looks like a number becomes one (1e-3 too), anything else stays."""
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[-+]?(0|[1-9]\d*)", value):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", value):
        if not math.isfinite(float(value)):
            raise ValueError(f"{value} is too large a number")
        return float(value) if not re.fullmatch(r"[-+]?\d+", value) else value  # 0123 is a name, not a number
    return value


class ModuleSection(Section):
    """The user's own Python file; `options` are its own keys, read as `config.model.options`."""

    module: Text
    """Python file with build_model(config), relative to the folder in which the run starts."""
    options: Annotated[dict[str, Any], BeforeValidator(_with_numbers)] = Field(default_factory=dict)
    """The file's own keys."""


# Tags hold a space, so that in pydantic's locations they can't be taken for a key.
MODEL_KINDS: dict[str, type[Section]] = {
    "built-in model": LlamaSection,
    "Hugging Face model": HuggingFaceSection,
    "user model": ModuleSection,
}


def _kind(value: Any) -> str:
    """By the key that only one kind has; anything else is the built-in model."""
    for tag, section in MODEL_KINDS.items():
        if isinstance(value, section):
            return tag
    keys = value if isinstance(value, dict) else {}
    if "huggingface" in keys:
        return "Hugging Face model"
    return "user model" if "module" in keys else "built-in model"


ModelSection = Annotated[
    Annotated[LlamaSection, Tag("built-in model")]
    | Annotated[HuggingFaceSection, Tag("Hugging Face model")]
    | Annotated[ModuleSection, Tag("user model")],
    Discriminator(_kind),
]
