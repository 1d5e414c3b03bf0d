"""Family `gpt2`: learned positions, LayerNorm, fused projections stored [in, out], tied unembedding."""

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights, has_unembedding, unembedding
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# dropout acts in training only; reorder_and_upcast_attn moves the scale, in exact arithmetic without effect
_HARMLESS = frozenset(
    """
    attn_pdrop embd_pdrop resid_pdrop n_ctx reorder_and_upcast_attn summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj
    """.split()
)


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a GPT-2 config describes."""
    d_model, n_heads = keys.integer("n_embd", 768), keys.integer("n_head", 12)
    n_layers = keys.layers("n_layer", 12)
    if d_model % n_heads:
        raise keys.fault(f"n_embd {d_model} is no multiple of n_head {n_heads}")
    keys.only("add_cross_attention", False)
    d_k = d_model // n_heads
    scale = d_k**-0.5 if keys.flag("scale_attn_weights", True) else 1.0
    by_layer = keys.flag("scale_attn_by_inverse_layer_idx", False)
    tied = keys.flag("tie_word_embeddings", True)
    return StackConfig(
        family="gpt2",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_k=d_k,
        d_v=d_k,
        d_ff=keys.integer("n_inner", 4 * d_model),
        vocab_size=keys.integer("vocab_size", 50257),
        max_positions=keys.integer("n_positions", 1024),
        norm="layer_norm",
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        activation=keys.choice("activation_function", ACTIVATIONS, "gelu_new"),
        attention_scales=tuple(scale / (i + 1) if by_layer else scale for i in range(n_layers)),
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        learned_positions=True,
        unembedding=has_unembedding(keys.get("architectures"), tied),
        tied=tied,
    )


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; every matrix is stored [in, out], so it is transposed (as a view)."""
    d, d_ff = config.d_model, config.d_ff
    yield "token_embedding.weight", tensors.take("wte.weight", config.vocab_size, d)
    yield "position_embedding.weight", tensors.take("wpe.weight", config.max_positions, d)
    for i in range(config.n_layers):
        theirs, ours = f"h.{i}", f"layers.{i}"
        for ln, name in (("ln_1", "ln1"), ("ln_2", "ln2")):
            yield f"{ours}.{name}.weight", tensors.take(f"{theirs}.{ln}.weight", d)
            yield f"{ours}.{name}.bias", tensors.take(f"{theirs}.{ln}.bias", d)
        fused_weight = tensors.take(f"{theirs}.attn.c_attn.weight", d, 3 * d).T
        fused_bias = tensors.take(f"{theirs}.attn.c_attn.bias", 3 * d)
        for name, weight, bias in zip("qkv", fused_weight.chunk(3), fused_bias.chunk(3), strict=True):
            yield f"{ours}.attention.{name}.weight", weight
            yield f"{ours}.attention.{name}.bias", bias
        for name, theirs_name, rows, columns in (
            ("attention.o", "attn.c_proj", d, d),
            ("feed_forward.up", "mlp.c_fc", d, d_ff),
            ("feed_forward.down", "mlp.c_proj", d_ff, d),
        ):
            yield f"{ours}.{name}.weight", tensors.take(f"{theirs}.{theirs_name}.weight", rows, columns).T
            yield f"{ours}.{name}.bias", tensors.take(f"{theirs}.{theirs_name}.bias", columns)
    yield "final_norm.weight", tensors.take("ln_f.weight", d)
    yield "final_norm.bias", tensors.take("ln_f.bias", d)
    yield from unembedding(config, tensors, "wte.weight", "lm_head.weight")
    tensors.ignore(r"h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask, in old files


FAMILY = Family("gpt2", "transformer.", _HARMLESS, read_config, weights)
