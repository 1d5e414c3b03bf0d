"""Family `llama`: RMSNorm, rotary positions (halves), grouped keys and values, SwiGLU; and what its relatives share."""

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights, has_unembedding, linear, unembedding
from model.checkpoint.gpt2 import ACTIVATIONS
from model.checkpoint.rope import check_frequencies, rotary
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

HARMLESS = frozenset({"attention_dropout", "is_llama_config"})


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a Llama config describes; defaults are those of the family's reference implementation."""
    attention_bias = keys.flag("attention_bias", False)
    for key, neutral in (("sliding_window", 0), ("use_sliding_window", False), ("pretraining_tp", 1)):
        keys.only(key, neutral)
    return stack_config(
        keys,
        family="llama",
        d_ff=11008,
        n_kv_heads=None,
        vocab_size=32000,
        max_positions=2048,
        qkv_bias=attention_bias,
        attention_out_bias=attention_bias,
        feed_forward_bias=keys.flag("mlp_bias", False),
    )


def stack_config(
    keys: ConfigKeys,
    *,
    family: str,
    d_ff: int,
    n_kv_heads: int | None,
    vocab_size: int,
    max_positions: int,
    qkv_bias: bool = False,
    attention_out_bias: bool = False,
    feed_forward_bias: bool = False,
    windows: tuple[int | None, ...] = (),
) -> StackConfig:
    """The stack of a family with Llama's layer.

    Sizes are the family's defaults, for keys that the config lacks; `n_kv_heads` None stands for one a query head.
    """
    d_model, n_heads = keys.integer("hidden_size", 4096), keys.integer("num_attention_heads", 32)
    n_layers = keys.layers("num_hidden_layers", 32)
    d_k = keys.integer("head_dim", max(1, d_model // n_heads))
    tied = keys.flag("tie_word_embeddings", False)
    keys.only("quantization_config", {})
    if n_kv_heads is None or keys.is_null("num_key_value_heads"):
        n_kv_heads = n_heads
    return StackConfig(
        family=family,
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=keys.integer("num_key_value_heads", n_kv_heads),
        d_k=d_k,
        d_v=d_k,
        d_ff=keys.integer("intermediate_size", d_ff),
        vocab_size=keys.integer("vocab_size", vocab_size),
        max_positions=keys.integer("max_position_embeddings", max_positions),
        norm="rms_norm",
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        activation=keys.choice("hidden_act", ACTIVATIONS, "silu"),
        attention_scales=(d_k**-0.5,) * n_layers,
        gated=True,
        qkv_bias=qkv_bias,
        attention_out_bias=attention_out_bias,
        feed_forward_bias=feed_forward_bias,
        rotary_theta=rotary(keys),
        windows=windows,
        unembedding=has_unembedding(keys.get("architectures"), tied),
        tied=tied,
    )


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; matrices are stored [out, in], as the stack has them."""
    d, d_ff = config.d_model, config.d_ff
    q_width, kv_width = config.n_heads * config.d_k, config.n_kv_heads * config.d_k
    yield "token_embedding.weight", tensors.take("embed_tokens.weight", config.vocab_size, d)
    for i in range(config.n_layers):
        theirs, ours = f"layers.{i}", f"layers.{i}"
        yield f"{ours}.ln1.weight", tensors.take(f"{theirs}.input_layernorm.weight", d)
        yield f"{ours}.ln2.weight", tensors.take(f"{theirs}.post_attention_layernorm.weight", d)
        for name, theirs_name, rows, columns, bias in (
            ("attention.q", "self_attn.q_proj", q_width, d, config.qkv_bias),
            ("attention.k", "self_attn.k_proj", kv_width, d, config.qkv_bias),
            ("attention.v", "self_attn.v_proj", kv_width, d, config.qkv_bias),
            ("attention.o", "self_attn.o_proj", d, q_width, config.attention_out_bias),
            ("feed_forward.gate", "mlp.gate_proj", d_ff, d, config.feed_forward_bias),
            ("feed_forward.up", "mlp.up_proj", d_ff, d, config.feed_forward_bias),
            ("feed_forward.down", "mlp.down_proj", d, d_ff, config.feed_forward_bias),
        ):
            yield from linear(f"{ours}.{name}", tensors, f"{theirs}.{theirs_name}", rows, columns, bias)
        check_frequencies(config, tensors, f"{theirs}.self_attn.rotary_emb.inv_freq")
    yield "final_norm.weight", tensors.take("norm.weight", d)
    yield from unembedding(config, tensors, "embed_tokens.weight", "lm_head.weight")


FAMILY = Family("llama", "model.", HARMLESS, read_config, weights)
