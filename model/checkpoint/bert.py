"""Family `bert`: post-norm layers in which every row sees every row; learned positions, token types, a norm before.

Every token is of type 0. Its pooler, and heads that work on the pooled row, give no point and are passed over.
"""

import re

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights, architecture, layer_norm, linear, unembedding
from model.checkpoint.gpt2 import ACTIVATIONS
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

_HARMLESS = frozenset(
    """
    attention_probs_dropout_prob classifier_dropout directionality hidden_dropout_prob pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    """.split()
)
_WITH_HEAD = frozenset({"BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel"})


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a BERT config describes; it has logits where `architectures` names a language model."""
    d_model, n_heads = keys.integer("hidden_size", 768), keys.integer("num_attention_heads", 12)
    n_layers = keys.layers("num_hidden_layers", 12)
    if d_model % n_heads:
        raise keys.fault(f"hidden_size {d_model} is no multiple of num_attention_heads {n_heads}")
    keys.only("position_embedding_type", "absolute")
    keys.only("add_cross_attention", False)
    keys.only("quantization_config", {})
    d_k = d_model // n_heads
    head = architecture(keys.get("architectures")) in _WITH_HEAD
    return StackConfig(
        family="bert",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_k=d_k,
        d_v=d_k,
        d_ff=keys.integer("intermediate_size", 3072),
        vocab_size=keys.integer("vocab_size", 30522),
        max_positions=keys.integer("max_position_embeddings", 512),
        norm="layer_norm",
        norm_eps=keys.number("layer_norm_eps", 1e-12),
        activation=keys.choice("hidden_act", ACTIVATIONS, "gelu"),
        attention_scales=(d_k**-0.5,) * n_layers,
        qkv_bias=True,
        attention_out_bias=True,
        feed_forward_bias=True,
        arrangement="post_norm",
        learned_positions=True,
        token_types=keys.integer("type_vocab_size", 2),
        embedding_norm=True,
        causal=keys.flag("is_decoder", False),
        final_norm=False,
        head_transform=head,
        unembedding=head,
        unembedding_bias=head,
        tied=keys.flag("tie_word_embeddings", True),
    )


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; matrices are stored [out, in], as the stack has them."""
    d, d_ff = config.d_model, config.d_ff
    embedding = "embeddings.word_embeddings.weight"
    yield "token_embedding.weight", tensors.take(embedding, config.vocab_size, d)
    for name, rows in (("position", config.max_positions), ("token_type", config.token_types)):
        yield f"{name}_embedding.weight", tensors.take(f"embeddings.{name}_embeddings.weight", rows, d)
    yield from layer_norm("embedding_norm", tensors, "embeddings.LayerNorm", d)
    for i in range(config.n_layers):
        theirs, ours = f"encoder.layer.{i}", f"layers.{i}"
        for name in ("query", "key", "value"):
            yield from linear(f"{ours}.attention.{name[0]}", tensors, f"{theirs}.attention.self.{name}", d, d)
        yield from linear(f"{ours}.attention.o", tensors, f"{theirs}.attention.output.dense", d, d)
        yield from layer_norm(f"{ours}.ln1", tensors, f"{theirs}.attention.output.LayerNorm", d)
        yield from linear(f"{ours}.feed_forward.up", tensors, f"{theirs}.intermediate.dense", d_ff, d)
        yield from linear(f"{ours}.feed_forward.down", tensors, f"{theirs}.output.dense", d, d_ff)
        yield from layer_norm(f"{ours}.ln2", tensors, f"{theirs}.output.LayerNorm", d)
    if config.head_transform:
        head = "cls.predictions"
        yield from linear("head_transform.dense", tensors, f"{head}.transform.dense", d, d)
        yield from layer_norm("head_transform.norm", tensors, f"{head}.transform.LayerNorm", d)
        yield from unembedding(config, tensors, embedding, f"{head}.decoder.weight")
        bias, own_bias = f"{head}.bias", f"{head}.decoder.bias"
        if config.tied:
            tensors.take_copy_of(bias, own_bias, config.vocab_size)
        elif own_bias in tensors:
            bias, unused = own_bias, bias
            tensors.ignore(re.escape(unused))  # where nothing is tied, the decoder adds its own bias alone
        yield "unembedding.bias", tensors.take(bias, config.vocab_size)
    tensors.ignore(r"embeddings\.position_ids")  # 0, 1, 2, ..., in old files
    tensors.ignore(r"pooler\.dense\.(weight|bias)|cls\.seq_relationship\.(weight|bias)")


FAMILY = Family("bert", "bert.", _HARMLESS, read_config, weights)
