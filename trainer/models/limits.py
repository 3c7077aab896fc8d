"""What a model has room for: ids and positions. Imports no torch, so that a recipe's check can ask too."""

from __future__ import annotations

from pathlib import Path

from trainer import strict_json
from trainer.errors import ConfigError
from trainer.models.sections import HuggingFaceSection, LlamaSection, ModuleSection


def told(section: LlamaSection | HuggingFaceSection | ModuleSection) -> tuple[int | None, int | None]:
    """(vocabulary, longest sequence) as the recipe or a Hugging Face folder's config.json says; None: not said there.

    Raises ConfigError for a config.json that can't be read.
    """
    if isinstance(section, LlamaSection):
        return section.vocabulary, None  # rotary positions have no end
    if not isinstance(section, HuggingFaceSection):
        return None, None
    path = Path(section.huggingface).expanduser() / "config.json"
    try:
        config = strict_json.decode(path.read_bytes())
    except FileNotFoundError:  # a hub name
        return None, None
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.huggingface: {path} cannot be read ({error}); complete the folder.") from None
    text = config.get("text_config", config) if isinstance(config, dict) else None
    found = [text.get(key) if isinstance(text, dict) else None for key in ("vocab_size", "max_position_embeddings")]
    vocabulary, positions = (value if isinstance(value, int) else None for value in found)
    return vocabulary, positions


def check(vocabulary: int | None, positions: int | None, *, ids: int, length: int) -> None:
    """Refuses data with ids from 0 to `ids` - 1 in sequences of `length` where there is no room for them.

    None: the model doesn't say. Raises ConfigError.
    """
    if vocabulary is not None and ids > vocabulary:
        raise ConfigError(
            f"model: its vocabulary of {vocabulary} is smaller than the {ids} ids of the data's tokenizer; "
            "give the model a larger vocabulary, or prepare the data with its own tokenizer."
        )
    if positions is not None and length > positions:
        raise ConfigError(
            f"data.sequence_length {length} is longer than the {positions} positions of the model; shorten it."
        )
