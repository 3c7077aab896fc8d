"""Fine-tuning with LoRA: a Hugging Face model stays frozen, small adapters beside its layers are trained and saved.

Run: python -m trainer examples/lora/recipe.yaml --set strategy=single
 or: torchrun --nproc-per-node 2 -m trainer examples/lora/recipe.yaml

The recipe trains a tiny model with random weights, so that it runs anywhere without a download. For a real one, set
model.options.base to its folder or hub name, and data to text in its own tokens (python -m trainer prepare).
The loss is the trainer's own for language models, because this file has none.
"""

from typing import Any

from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

TINY = LlamaConfig(
    vocab_size=257,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=None,
    eos_token_id=None,
    use_cache=False,
)


def build_model(config: Any) -> nn.Module:
    options = config.model.options
    base = options.get("base")
    model = AutoModelForCausalLM.from_pretrained(base) if base else LlamaForCausalLM(TINY)
    model.config.use_cache = False
    lora = LoraConfig(r=options["rank"], lora_alpha=2 * options["rank"], target_modules=options["layers"])
    # No cast of the adapters: parameters are float32 here, and training.precision says what computes.
    return get_peft_model(model, lora, autocast_adapter_dtype=False)
