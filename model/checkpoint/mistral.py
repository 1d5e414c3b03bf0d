"""Family `mistral`: Llama's layer, in which a row sees the last `sliding_window` keys alone."""

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family
from model.checkpoint.llama import HARMLESS, stack_config, weights
from model.config import StackConfig


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a Mistral config describes; a `sliding_window` that is null, not absent, means none."""
    window = None if keys.is_null("sliding_window") else keys.integer("sliding_window", 4096)
    return stack_config(
        keys,
        family="mistral",
        d_ff=14336,
        n_kv_heads=8,
        vocab_size=32000,
        max_positions=131072,
        windows=(window,) * keys.layers("num_hidden_layers", 32),
    )


FAMILY = Family("mistral", "model.", HARMLESS, read_config, weights)
