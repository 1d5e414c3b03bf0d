"""Family `opt`: learned positions from the table's third row on, LayerNorm, ReLU, biases; pre-norm models alone."""

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights, has_unembedding, layer_norm, linear, unembedding
from model.checkpoint.gpt2 import ACTIVATIONS
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

_HARMLESS = frozenset({"activation_dropout", "attention_dropout", "dropout", "init_std", "layerdrop"})
_OFFSET = 2  # rows of the position table before position 0; the reference gives them to padding


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that an OPT config describes; defaults are those of the family's reference implementation."""
    d_model, n_heads = keys.integer("hidden_size", 768), keys.integer("num_attention_heads", 12)
    n_layers = keys.layers("num_hidden_layers", 12)
    if d_model % n_heads:
        raise keys.fault(f"hidden_size {d_model} is no multiple of num_attention_heads {n_heads}")
    keys.only("do_layer_norm_before", True)  # one model, of 350M parameters, is post-norm in a way of its own
    keys.only("word_embed_proj_dim", d_model)
    keys.only("layer_norm_elementwise_affine", True)
    keys.only("quantization_config", {})
    d_k = d_model // n_heads
    bias = keys.flag("enable_bias", True)
    tied = keys.flag("tie_word_embeddings", True)
    return StackConfig(
        family="opt",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_k=d_k,
        d_v=d_k,
        d_ff=keys.integer("ffn_dim", 3072),
        vocab_size=keys.integer("vocab_size", 50272),
        max_positions=keys.integer("max_position_embeddings", 2048),
        norm="layer_norm",
        norm_eps=1e-5,
        activation=keys.choice("activation_function", ACTIVATIONS, "relu"),
        # The reference multiplies q instead of QK^T; q here is what it is before that, and the scale acts once.
        attention_scales=(d_k**-0.5,) * n_layers,
        qkv_bias=bias,
        attention_out_bias=bias,
        feed_forward_bias=bias,
        learned_positions=True,
        final_norm=not keys.flag("_remove_final_layer_norm", False),
        unembedding=has_unembedding(keys.get("architectures"), tied),
        tied=tied,
    )


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; matrices are stored [out, in], as the stack has them."""
    d, d_ff = config.d_model, config.d_ff
    yield "token_embedding.weight", tensors.take("decoder.embed_tokens.weight", config.vocab_size, d)
    table = tensors.take("decoder.embed_positions.weight", _OFFSET + config.max_positions, d)
    yield "position_embedding.weight", table[_OFFSET:]
    for i in range(config.n_layers):
        theirs, ours = f"decoder.layers.{i}", f"layers.{i}"
        yield from layer_norm(f"{ours}.ln1", tensors, f"{theirs}.self_attn_layer_norm", d)
        yield from layer_norm(f"{ours}.ln2", tensors, f"{theirs}.final_layer_norm", d)
        for name in "qkv":
            yield from linear(
                f"{ours}.attention.{name}", tensors, f"{theirs}.self_attn.{name}_proj", d, d, config.qkv_bias
            )
        for name, theirs_name, rows, columns in (
            ("attention.o", "self_attn.out_proj", d, d),
            ("feed_forward.up", "fc1", d_ff, d),
            ("feed_forward.down", "fc2", d, d_ff),
        ):
            yield from linear(
                f"{ours}.{name}", tensors, f"{theirs}.{theirs_name}", rows, columns, config.feed_forward_bias
            )
    if config.final_norm:
        yield from layer_norm("final_norm", tensors, "decoder.final_layer_norm", d)
    yield from unembedding(config, tensors, "decoder.embed_tokens.weight", "lm_head.weight")


FAMILY = Family("opt", "model.", _HARMLESS, read_config, weights)
