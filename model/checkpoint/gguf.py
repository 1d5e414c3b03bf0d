"""A GGUF file into the layout that is served: config.json, model.safetensors, tokenizer.json.

Quantised tensors are dequantised to float32, so that the numbers are those of the file. For Llama the rows of W_Q and
W_K are put back in order: GGUF stores them for rotation of neighbouring pairs, the stack rotates halves.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from model.checkpoint.write import new_directory, write_config, write_weights
from model.errors import CheckpointError

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# what a file says about itself, its quantisation and its chat, none of which changes a forward pass
_SILENT = ("general.", "tokenizer.", "GGUF.", "quantize.", "split.")
_CONTROL, _USER_DEFINED = 3, 4  # token types of llama.cpp
# which projections have biases under each key of a Llama config
_BIASED = {
    "attention_bias": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    "mlp_bias": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
}

Progress = Callable[[str], None]


def convert_gguf(source: Path, destination: Path, progress: Progress) -> None:
    """Write the served layout of a GGUF file to a new directory; CheckpointError where it cannot be right."""
    try:
        reader = GGUFReader(source)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"{source}: not a readable GGUF file ({error})") from None
    fields = dict(reader.fields)

    def value(key: str, default: Any = None) -> Any:
        try:
            return fields[key].contents() if key in fields else default
        except (ValueError, IndexError) as error:
            raise CheckpointError(f"{source}: {key} cannot be read ({error})") from None

    if value("general.architecture") != "llama":
        raise CheckpointError(
            f"{source}: general.architecture is {value('general.architecture')!r}, an unknown family; known is llama"
        )
    config = _config(source, value, {key for key in fields if not key.startswith(_SILENT)})
    with new_directory(destination) as directory:
        tensors: dict[str, Tensor] = {}
        for number, stored in enumerate(reader.tensors, 1):
            if number % 30 == 0 or number == len(reader.tensors):
                progress(f"dequantising {number} of {len(reader.tensors)} tensors")
            name, tensor = _tensor(source, stored, config)
            tensors[name] = tensor
        config["tie_word_embeddings"] = "lm_head.weight" not in tensors
        for key, projections in _BIASED.items():
            config[key] = _has_biases(source, projections, set(tensors), config["num_hidden_layers"])
        write_config(directory, config)
        tokenizer = _tokenizer(source, value, progress)
        if tokenizer is not None:
            tokenizer.save(str(directory / "tokenizer.json"))
        progress("writing model.safetensors")
        write_weights(directory, tensors)


def _config(source: Path, value: Callable[..., Any], keys: set[str]) -> dict[str, Any]:
    def needed(key: str) -> Any:
        if key not in keys:
            raise CheckpointError(f"{source}: {key} is missing")
        return value(key)

    d_model, n_heads = int(needed("llama.embedding_length")), needed("llama.attention.head_count")
    d_k = int(value("llama.attention.key_length", d_model // n_heads))
    for key, neutral in (
        ("llama.rope.dimension_count", d_k),
        ("llama.attention.value_length", d_k),
        ("llama.rope.scaling.type", "none"),
        ("llama.expert_count", 0),
    ):
        if value(key, neutral) != neutral:
            raise CheckpointError(
                f"{source}: {key} is {value(key)!r}, which would change the numbers and is not supported"
            )
    known = """
        block_count context_length embedding_length feed_forward_length vocab_size attention.head_count
        attention.head_count_kv attention.key_length attention.value_length attention.layer_norm_rms_epsilon
        rope.dimension_count rope.freq_base rope.scaling.type expert_count
    """
    unknown = keys - {f"llama.{name}" for name in known.split()}
    if unknown:
        raise CheckpointError(f"{source}: key {min(unknown)!r} is not supported and may change the numbers")
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": d_model,
        "intermediate_size": int(needed("llama.feed_forward_length")),
        "num_hidden_layers": int(needed("llama.block_count")),
        "num_attention_heads": int(n_heads),
        "num_key_value_heads": int(value("llama.attention.head_count_kv", n_heads)),
        "head_dim": d_k,
        "hidden_act": "silu",
        "max_position_embeddings": int(needed("llama.context_length")),
        "rms_norm_eps": float(needed("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(value("llama.rope.freq_base", 10000.0)),
        "vocab_size": int(value("llama.vocab_size", 0)) or len(value("tokenizer.ggml.tokens", ())),
    }


def _tensor(source: Path, stored: Any, config: dict[str, Any]) -> tuple[str, Tensor]:
    """A tensor under its Hugging Face name, dequantised."""
    name = _NAMES.get(stored.name)
    if name is None:
        block, _, rest = stored.name.removeprefix("blk.").partition(".")
        stem, _, suffix = rest.rpartition(".")
        if not (block.isdecimal() and stem in _LAYER_NAMES and suffix in ("weight", "bias")):
            raise CheckpointError(f"{source}: tensor {stored.name!r} is not used by this family")
        name = f"model.layers.{block}.{_LAYER_NAMES[stem]}.{suffix}"
    try:
        values = dequantize(stored.data, stored.tensor_type)
    except NotImplementedError:
        raise CheckpointError(
            f"{source}: tensor {stored.name!r} is {stored.tensor_type.name}, which cannot be dequantised"
        ) from None
    tensor = torch.from_numpy(np.array(values, dtype=np.float32))  # a copy: the file is mapped read-only
    if ".q_proj." in name:
        tensor = rows_for_halves(tensor, config["num_attention_heads"])
    elif ".k_proj." in name:
        tensor = rows_for_halves(tensor, config["num_key_value_heads"])
    return name, tensor


def _has_biases(source: Path, projections: tuple[str, ...], names: set[str], n_layers: int) -> bool:
    """Whether these projections have biases: all of them in every layer, or none."""
    possible = {f"model.layers.{i}.{projection}.bias" for i in range(n_layers) for projection in projections}
    if possible & names and not possible <= names:
        missing = min(possible - names)
        raise CheckpointError(f"{source}: some projections have biases and {missing!r} is missing; not supported")
    return bool(possible & names)


def rows_for_halves(weight: Tensor, heads: int) -> Tensor:
    """Undo GGUF's order of a head's rows: x_0, x_{K/2}, x_1, x_{K/2 + 1}, ... back to x_0, x_1, ...; same shape."""
    width = weight.shape[0] // heads
    pairs = weight.reshape(heads, width // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def _tokenizer(source: Path, value: Callable[..., Any], progress: Progress) -> Tokenizer | None:
    """Byte-level BPE from the file's metadata; None, and a word about it, for any other kind."""
    kind = value("tokenizer.ggml.model"), value("tokenizer.ggml.pre", "gpt-2")
    before = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}
    if kind[0] != "gpt2" or kind[1] not in before:
        progress(f"no tokenizer for {kind[0]}/{kind[1]}: `text` will not be accepted, `tokens` will")
        return None
    tokens, pairs = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.merges")
    for name, words in (("tokens", tokens), ("merges", pairs)):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise CheckpointError(f"{source}: tokenizer.ggml.{name} is missing, or no list of words")
    merges = [tuple(pair.split(" ")) for pair in pairs]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*before[kind[1]], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = value("tokenizer.ggml.token_type", [])
    defined = [i for i, kind in enumerate(types) if kind == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(tokens[i], special=False, normalized=False) for i in defined])
    control = [i for i, kind in enumerate(types) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in control])
    if value("tokenizer.ggml.add_bos_token", False):
        bos = value("tokenizer.ggml.bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer
