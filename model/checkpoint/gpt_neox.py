"""Family `gpt_neox`: attention and FFN side by side, rotary positions for a part of each head, fused q, k and v."""

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights, has_unembedding, layer_norm, linear, unembedding
from model.checkpoint.gpt2 import ACTIVATIONS
from model.checkpoint.rope import check_frequencies, partial_rotary
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

_HARMLESS = frozenset({"attention_dropout", "hidden_dropout", "classifier_dropout"})


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a GPT-NeoX config describes; defaults are those of the family's reference implementation."""
    d_model, n_heads = keys.integer("hidden_size", 6144), keys.integer("num_attention_heads", 64)
    n_layers = keys.layers("num_hidden_layers", 44)
    if d_model % n_heads:
        raise keys.fault(f"hidden_size {d_model} is no multiple of num_attention_heads {n_heads}")
    keys.only("quantization_config", {})
    d_k = d_model // n_heads
    theta, fraction = partial_rotary(keys, theta_key="rotary_emb_base", fraction_key="rotary_pct", fraction=0.25)
    attention_bias = keys.flag("attention_bias", True)
    tied = keys.flag("tie_word_embeddings", False)
    return StackConfig(
        family="gpt_neox",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_k=d_k,
        d_v=d_k,
        d_ff=keys.integer("intermediate_size", 24576),
        vocab_size=keys.integer("vocab_size", 50432),
        max_positions=keys.integer("max_position_embeddings", 2048),
        norm="layer_norm",
        norm_eps=keys.number("layer_norm_eps", 1e-5),
        activation=keys.choice("hidden_act", ACTIVATIONS, "gelu"),
        attention_scales=(d_k**-0.5,) * n_layers,
        qkv_bias=attention_bias,
        attention_out_bias=attention_bias,
        feed_forward_bias=True,
        arrangement="parallel" if keys.flag("use_parallel_residual", True) else "pre_norm",
        rotary_theta=theta,
        rotary_width=int(d_k * fraction),
        unembedding=has_unembedding(keys.get("architectures"), tied),
        tied=tied,
    )


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; the fused projection, one head after the other in the file, taken apart."""
    d, d_ff = config.d_model, config.d_ff
    yield "token_embedding.weight", tensors.take("embed_in.weight", config.vocab_size, d)
    for i in range(config.n_layers):
        theirs, ours = f"layers.{i}", f"layers.{i}"
        yield from layer_norm(f"{ours}.ln1", tensors, f"{theirs}.input_layernorm", d)
        yield from layer_norm(f"{ours}.ln2", tensors, f"{theirs}.post_attention_layernorm", d)
        for kind, fused in linear("", tensors, f"{theirs}.attention.query_key_value", 3 * d, d, config.qkv_bias):
            by_head = fused.reshape(config.n_heads, 3, config.d_k, *fused.shape[1:])
            for j, name in enumerate("qkv"):
                yield f"{ours}.attention.{name}{kind}", by_head[:, j].flatten(0, 1)
        yield from linear(f"{ours}.attention.o", tensors, f"{theirs}.attention.dense", d, d, config.attention_out_bias)
        yield from linear(f"{ours}.feed_forward.up", tensors, f"{theirs}.mlp.dense_h_to_4h", d_ff, d)
        yield from linear(f"{ours}.feed_forward.down", tensors, f"{theirs}.mlp.dense_4h_to_h", d, d_ff)
        check_frequencies(config, tensors, f"{theirs}.attention.rotary_emb.inv_freq")
    yield from layer_norm("final_norm", tensors, "final_layer_norm", d)
    head = "embed_out.weight" if "embed_out.weight" in tensors else "lm_head.weight"
    yield from unembedding(config, tensors, "embed_in.weight", head)
    tensors.ignore(r"layers\.\d+\.attention\.(bias|masked_bias)")  # the causal mask, in old files


FAMILY = Family("gpt_neox", "gpt_neox.", _HARMLESS, read_config, weights)
