"""Family `llama`: RMSNorm, rotary positions (halves), grouped keys and values, SwiGLU."""

import torch

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights, has_unembedding, unembedding
from model.checkpoint.gpt2 import ACTIVATIONS
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig
from model.errors import CheckpointError

_HARMLESS = frozenset({"attention_dropout", "is_llama_config"})


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a Llama config describes; defaults are those of the family's reference implementation."""
    d_model, n_heads = keys.integer("hidden_size", 4096), keys.integer("num_attention_heads", 32)
    n_layers = keys.integer("num_hidden_layers", 32)
    d_k = keys.integer("head_dim", max(1, d_model // n_heads))
    tied = keys.flag("tie_word_embeddings", False)
    attention_bias = keys.flag("attention_bias", False)
    for key, neutral in (
        ("rope_scaling", {}),
        ("sliding_window", 0),
        ("use_sliding_window", False),
        ("partial_rotary_factor", 1.0),
        ("rope_interleaved", False),
        ("pretraining_tp", 1),
        ("quantization_config", {}),
    ):
        keys.only(key, neutral)
    return StackConfig(
        family="llama",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=keys.integer("num_key_value_heads", n_heads),
        d_k=d_k,
        d_v=d_k,
        d_ff=keys.integer("intermediate_size", 11008),
        vocab_size=keys.integer("vocab_size", 32000),
        max_positions=keys.integer("max_position_embeddings", 2048),
        norm="rms_norm",
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        activation=keys.choice("hidden_act", ACTIVATIONS, "silu"),
        attention_scales=(d_k**-0.5,) * n_layers,
        gated=True,
        qkv_bias=attention_bias,
        attention_out_bias=attention_bias,
        feed_forward_bias=keys.flag("mlp_bias", False),
        rotary_theta=_rotary_theta(keys),
        unembedding=has_unembedding(keys.get("architectures"), tied),
        tied=tied,
    )


def _rotary_theta(keys: ConfigKeys) -> float:
    """The base of the angles, which newer configs keep in `rope_parameters`; scalings of it are refused."""
    parameters = keys.get("rope_parameters", {})
    if not isinstance(parameters, dict):
        raise keys.fault(f"rope_parameters is {parameters!r}, and must be an object")
    within = ConfigKeys(parameters, f"{keys.where}: rope_parameters")
    within.only("rope_type", "default")
    within.only("type", "default")
    within.only("partial_rotary_factor", 1.0)
    theta = within.number("rope_theta", keys.number("rope_theta", 10000.0))
    within.finish(())
    if theta <= 0:
        raise keys.fault(f"rope_theta is {theta}, and must be above 0")
    return theta


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; matrices are stored [out, in], as the stack has them."""
    d, d_ff = config.d_model, config.d_ff
    q_width, kv_width = config.n_heads * config.d_k, config.n_kv_heads * config.d_k
    yield "token_embedding.weight", tensors.take("embed_tokens.weight", config.vocab_size, d)
    for i in range(config.n_layers):
        theirs, ours = f"layers.{i}", f"layers.{i}"
        yield f"{ours}.ln1.weight", tensors.take(f"{theirs}.input_layernorm.weight", d)
        yield f"{ours}.ln2.weight", tensors.take(f"{theirs}.post_attention_layernorm.weight", d)
        for name, theirs_name, columns, rows, bias in (
            ("attention.q", "self_attn.q_proj", q_width, d, config.qkv_bias),
            ("attention.k", "self_attn.k_proj", kv_width, d, config.qkv_bias),
            ("attention.v", "self_attn.v_proj", kv_width, d, config.qkv_bias),
            ("attention.o", "self_attn.o_proj", d, q_width, config.attention_out_bias),
            ("feed_forward.gate", "mlp.gate_proj", d_ff, d, config.feed_forward_bias),
            ("feed_forward.up", "mlp.up_proj", d_ff, d, config.feed_forward_bias),
            ("feed_forward.down", "mlp.down_proj", d, d_ff, config.feed_forward_bias),
        ):
            yield f"{ours}.{name}.weight", tensors.take(f"{theirs}.{theirs_name}.weight", columns, rows)
            if bias:
                yield f"{ours}.{name}.bias", tensors.take(f"{theirs}.{theirs_name}.bias", columns)
        _check_frequencies(config, tensors, f"{theirs}.self_attn.rotary_emb.inv_freq")
    yield "final_norm.weight", tensors.take("norm.weight", d)
    yield from unembedding(config, tensors, "embed_tokens.weight", "lm_head.weight")


def _check_frequencies(config: StackConfig, tensors: CheckpointTensors, name: str) -> None:
    """Old files carry the rotary frequencies: they hold no parameter, but must be those of the config."""
    if name not in tensors:
        return
    assert config.rotary_theta is not None
    stored = tensors.take(name, config.d_k // 2).float()
    pairs = torch.arange(0, config.d_k, 2, dtype=torch.float32)
    if not torch.allclose(stored, config.rotary_theta ** (-pairs / config.d_k), rtol=1e-2):
        raise CheckpointError(f"{tensors.path}: {name!r} differs from what rope_theta gives")


FAMILY = Family("llama", "model.", _HARMLESS, read_config, weights)
