"""Family `qwen2`: Llama's layer with biases in q, k and v alone, and in some models windows in the upper layers."""

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family
from model.checkpoint.llama import HARMLESS, stack_config, weights
from model.config import StackConfig

_TYPES = ("full_attention", "sliding_attention")


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a Qwen2 config describes."""
    return stack_config(
        keys,
        family="qwen2",
        d_ff=22016,
        n_kv_heads=32,
        vocab_size=151936,
        max_positions=32768,
        qkv_bias=True,
        windows=_windows(keys, keys.layers("num_hidden_layers", 32)),
    )


def _windows(keys: ConfigKeys, n_layers: int) -> tuple[int | None, ...]:
    """The window of each layer: as `layer_types` says, or from layer `max_window_layers` on."""
    window = None if keys.is_null("sliding_window") else keys.integer("sliding_window", 4096)
    if not keys.flag("use_sliding_window", False):
        window = None
    first = keys.integer("max_window_layers", 28, minimum=0)
    types = keys.get("layer_types")
    if types is None:
        return tuple(window if i >= first else None for i in range(n_layers))
    if not isinstance(types, list) or len(types) != n_layers or any(one not in _TYPES for one in types):
        raise keys.fault(f"layer_types is {types!r:.60}, and must name {' or '.join(_TYPES)} for each layer")
    if window is None and "sliding_attention" in types:
        raise keys.fault("layer_types has layers of sliding_attention, and no sliding_window is in use")
    return tuple(window if one == "sliding_attention" else None for one in types)


FAMILY = Family("qwen2", "model.", HARMLESS, read_config, weights)
