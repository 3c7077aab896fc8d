"""Text to token ids: plain bytes, or a tokenizer in the Hugging Face `tokenizers` format."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.sources import SEPARATOR
from trainer.data.storage import readable
from trainer.errors import ConfigError

# Tokens that end a document, in the order in which they are looked for when no separator is named.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
_PIECE = 2**20  # characters; longer text is encoded in pieces that end with a line, to bound memory


@dataclass(frozen=True)
class Tokenizer:
    """Cheap to send to another process: `definition` is the tokenizer.json text, None for bytes."""

    name: str
    vocabulary: int  # ids are below this
    separator: int
    digest: str
    definition: str | None = field(repr=False)
    _made: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def encode(self, texts: list[str]) -> list[NDArray[Any]]:
        """One array of ids a text, of any unsigned type and without separators.

        Special tokens spelled out in a text are plain text.
        """
        if self.definition is None:
            return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
        encoder = self._encoder()
        pieces = [_pieces(text) for text in texts]
        encoded = encoder.encode_batch_fast([piece for parts in pieces for piece in parts], add_special_tokens=False)
        ids = iter(np.array(item.ids, dtype=np.uint32) for item in encoded)
        return [np.concatenate([next(ids) for _ in parts]) for parts in pieces]

    def _encoder(self) -> Any:
        if "encoder" not in self._made:
            # One process is one worker: threads of the library on top would fight for the same cores.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            import tokenizers

            encoder = tokenizers.Tokenizer.from_str(self.definition or "")
            encoder.no_truncation()
            encoder.no_padding()
            encoder.encode_special_tokens = True
            self._made["encoder"] = encoder
        return self._made["encoder"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}


def load(name: str, *, separator: str | None = None) -> Tokenizer:
    """`bytes`, a tokenizer.json, a folder with one, or a name on the Hugging Face hub. Raises ConfigError.

    separator: the token that ends a document; by default the tokenizer's own end-of-text token.
    """
    if name == "bytes":
        return Tokenizer("bytes", SEPARATOR + 1, SEPARATOR, hashlib.sha256(b"bytes").hexdigest(), None)
    import tokenizers

    path = Path(name)
    own_end: str | None = None
    try:
        if path.is_file():
            encoder = tokenizers.Tokenizer.from_file(str(path))
        else:
            encoder, own_end = _from_transformers(name)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - `tokenizers` raises plain Exception for a file that is none
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"tokenizer {readable(name)}: cannot be loaded ({reason}).") from None
    words: dict[str, int] = encoder.get_vocab(with_added_tokens=True)
    candidates = [separator] if separator else [*([own_end] if own_end else []), *_ENDS]
    end = next((word for word in candidates if word in words), None)
    if end is None:
        raise ConfigError(
            f"tokenizer {readable(name)} has no token {separator!r}; name one of its tokens with --separator."
            if separator
            else f"tokenizer {readable(name)} has no end-of-text token; name the one to use with --separator."
        )
    definition: str = encoder.to_str()
    digest = hashlib.sha256(definition.encode()).hexdigest()
    label = readable(path.name) if path.exists() else name
    return Tokenizer(label, max(words.values()) + 1, words[end], digest, definition)


def _from_transformers(name: str) -> tuple[Any, str | None]:
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"tokenizer {readable(name)} is neither 'bytes', a tokenizer file, a folder with one, nor a name that "
            f"the Hugging Face hub gave ({reason})."
        ) from None
    if not getattr(loaded, "is_fast", False):
        raise ConfigError(f"tokenizer {name} has no tokenizer.json; convert it to a fast tokenizer first.")
    return loaded.backend_tokenizer, loaded.eos_token


def _pieces(text: str) -> list[str]:
    if len(text) <= _PIECE:
        return [text]
    parts, start = [], 0
    while start < len(text):
        end = text.find("\n", start + _PIECE) + 1 or len(text)
        parts.append(text[start:end])
        start = end
    return parts
