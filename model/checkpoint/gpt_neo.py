"""Family `gpt_neo`: GPT-2's layer with scores that are not scaled, and a window in every layer that is `local`."""

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights, has_unembedding, layer_norm, linear, unembedding
from model.checkpoint.gpt2 import ACTIVATIONS
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

_HARMLESS = frozenset(
    """
    attention_dropout classifier_dropout embed_dropout resid_dropout summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj
    """.split()
)


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a GPT-Neo config describes; defaults are those of the family's reference implementation."""
    d_model, n_heads = keys.integer("hidden_size", 2048), keys.integer("num_heads", 16)
    n_layers = keys.layers("num_layers", 24)
    if d_model % n_heads:
        raise keys.fault(f"hidden_size {d_model} is no multiple of num_heads {n_heads}")
    keys.only("quantization_config", {})
    d_k = d_model // n_heads
    tied = keys.flag("tie_word_embeddings", True)
    return StackConfig(
        family="gpt_neo",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_k=d_k,
        d_v=d_k,
        d_ff=keys.integer("intermediate_size", 4 * d_model),
        vocab_size=keys.integer("vocab_size", 50257),
        max_positions=keys.integer("max_position_embeddings", 2048),
        norm="layer_norm",
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        activation=keys.choice("activation_function", ACTIVATIONS, "gelu_new"),
        attention_scales=(1.0,) * n_layers,
        attention_out_bias=True,
        feed_forward_bias=True,
        learned_positions=True,
        windows=_windows(keys, n_layers),
        unembedding=has_unembedding(keys.get("architectures"), tied),
        tied=tied,
    )


def _windows(keys: ConfigKeys, n_layers: int) -> tuple[int | None, ...]:
    """The window of each layer, from `attention_types`: a list of [[kind, ...], how many times these]."""
    window = keys.integer("window_size", 256)
    types = keys.get("attention_types", [[["global", "local"], 12]])
    try:
        kinds = [kind for some, times in types for _ in range(times) for kind in some]
    except (TypeError, ValueError):
        raise keys.fault(f"attention_types is {types!r:.60}, and must be a list of [[kind, ...], times]") from None
    if len(kinds) != n_layers or any(kind not in ("global", "local") for kind in kinds):
        raise keys.fault(f"attention_types is {types!r:.60}, and must name global or local for {n_layers} layers")
    keys.only("attention_layers", kinds)
    return tuple(window if kind == "local" else None for kind in kinds)


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; matrices are stored [out, in], as the stack has them, unlike in GPT-2."""
    d, d_ff = config.d_model, config.d_ff
    yield "token_embedding.weight", tensors.take("wte.weight", config.vocab_size, d)
    yield "position_embedding.weight", tensors.take("wpe.weight", config.max_positions, d)
    for i in range(config.n_layers):
        theirs, ours = f"h.{i}", f"layers.{i}"
        yield from layer_norm(f"{ours}.ln1", tensors, f"{theirs}.ln_1", d)
        yield from layer_norm(f"{ours}.ln2", tensors, f"{theirs}.ln_2", d)
        for name in "qkv":
            yield from linear(
                f"{ours}.attention.{name}", tensors, f"{theirs}.attn.attention.{name}_proj", d, d, bias=False
            )
        yield from linear(f"{ours}.attention.o", tensors, f"{theirs}.attn.attention.out_proj", d, d)
        yield from linear(f"{ours}.feed_forward.up", tensors, f"{theirs}.mlp.c_fc", d_ff, d)
        yield from linear(f"{ours}.feed_forward.down", tensors, f"{theirs}.mlp.c_proj", d, d_ff)
    yield from layer_norm("final_norm", tensors, "ln_f", d)
    yield from unembedding(config, tensors, "wte.weight", "lm_head.weight")
    tensors.ignore(r"h\.\d+\.attn\.attention\.(bias|masked_bias)")  # the causal mask, in old files


FAMILY = Family("gpt_neo", "transformer.", _HARMLESS, read_config, weights)
