"""A GGUF file, written here from a transformers model by the format's own rules, converts back into that model."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from model.checkpoint.convert import convert
from model.checkpoint.load import LoadedModel, load_model
from model.errors import CheckpointError
from model.tokenizer import encode, strings
from tests.model.collect import ask, errors_above
from tests.model.huggingface import points_of

Q = GGMLQuantizationType
D, A, A_KV, D_K, D_FF = 96, 6, 2, 32, 160  # rows of quantised tensors come in blocks of 32; D_K is not D / A


# The tokenizer of the file: GPT-2's printable stand-in for each byte, two control tokens, four merges.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}
CONTROL = ["<|end|>", "<|begin|>"]
MERGES = ["h e", "t he", "Ġ the", "1 2"]
TOKENS = [*CONTROL, *(BYTES[byte] for byte in range(256)), *(pair.replace(" ", "") for pair in MERGES)]


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order of rows that llama.cpp's converter gives to q and k of Llama."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def dequantised(blocks: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Blocks of 32 numbers by the definition in ggml: Q8_0 is d * q, Q4_1 is d * q + m."""
    size = {Q.Q8_0: 34, Q.Q4_1: 20}[kind]
    blocks = blocks.reshape(len(blocks), -1, size)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    if kind == Q.Q8_0:
        values = d * blocks[..., 2:].view(np.int8)
    else:
        m = blocks[..., 2:4].copy().view(np.float16).astype(np.float32)
        values = d * np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1) + m
    return values.reshape(len(blocks), -1)


@dataclass
class Source:
    """What to write; `model` ends up with the numbers that the file holds."""

    model: nn.Module
    stored_as: GGMLQuantizationType = Q.F32
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        config = self.model.config
        writer = GGUFWriter(path, self.keys.pop("architecture", "llama"))
        numbers: dict[str, Any] = {
            "llama.embedding_length": D,
            "llama.attention.head_count": A,
            "llama.attention.head_count_kv": A_KV,
            "llama.attention.key_length": D_K,
            "llama.attention.value_length": D_K,
            "llama.rope.dimension_count": D_K,
            "llama.feed_forward_length": D_FF,
            "llama.block_count": config.num_hidden_layers,
            "llama.context_length": config.max_position_embeddings,
            "llama.vocab_size": config.vocab_size,
            "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "llama.rope.freq_base": config.rope_parameters["rope_theta"],
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)),
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 0,
        }
        for key, value in (numbers | self.keys).items():
            match value:
                case None:
                    pass
                case bool():
                    writer.add_bool(key, value)
                case int():
                    writer.add_uint32(key, value)
                case float():
                    writer.add_float32(key, value)
                case str():
                    writer.add_string(key, value)
                case list():
                    writer.add_array(key, value)
        self._add_tensors(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_tensors(self, writer: GGUFWriter) -> None:
        self._add(writer, "token_embd.weight", self.model.model.embed_tokens.weight)
        self._add(writer, "output_norm.weight", self.model.model.norm.weight)
        if not self.model.config.tie_word_embeddings:
            self._add(writer, "output.weight", self.model.lm_head.weight)
        for i, layer in enumerate(self.model.model.layers):
            attention, mlp = layer.self_attn, layer.mlp
            for name, weight, heads in (
                ("attn_norm", layer.input_layernorm.weight, 0),
                ("attn_q", attention.q_proj.weight, A),
                ("attn_k", attention.k_proj.weight, A_KV),
                ("attn_v", attention.v_proj.weight, 0),
                ("attn_output", attention.o_proj.weight, 0),
                ("ffn_norm", layer.post_attention_layernorm.weight, 0),
                ("ffn_gate", mlp.gate_proj.weight, 0),
                ("ffn_up", mlp.up_proj.weight, 0),
                ("ffn_down", mlp.down_proj.weight, 0),
            ):
                self._add(writer, f"blk.{i}.{name}.weight", weight, heads)
        for i, layer in enumerate(self.model.model.layers):
            attention = layer.self_attn
            if attention.q_proj.bias is not None:
                self._add(writer, f"blk.{i}.attn_q.bias", attention.q_proj.bias, A)
                self._add(writer, f"blk.{i}.attn_k.bias", attention.k_proj.bias, A_KV)
                self._add(writer, f"blk.{i}.attn_v.bias", attention.v_proj.bias)
                self._add(writer, f"blk.{i}.attn_output.bias", attention.o_proj.bias)
        for name, extra in self.tensors.items():
            writer.add_tensor(name, extra)

    def _add(self, writer: GGUFWriter, name: str, weight: torch.Tensor, heads: int = 0) -> None:
        values = weight.detach().numpy()
        if weight.ndim == 2 and self.stored_as != Q.F32:
            stored = quantize(values, self.stored_as)
            halved = self.stored_as == Q.F16
            kept = stored.astype(np.float32) if halved else dequantised(stored, self.stored_as)
            with torch.no_grad():
                weight.copy_(torch.from_numpy(kept))
            # whole rows are quantised, so their order may be changed afterwards
            stored = permuted(stored, heads) if heads else stored
            writer.add_tensor(name, stored, raw_dtype=None if halved else self.stored_as)
        else:
            writer.add_tensor(name, permuted(values, heads) if heads else values)


def source(**options: Any) -> Source:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=D,
        intermediate_size=D_FF,
        num_hidden_layers=2,
        num_attention_heads=A,
        num_key_value_heads=A_KV,
        head_dim=D_K,
        max_position_embeddings=101,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=options.pop("tied", True),
        attention_bias=options.pop("biased", False),
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(31)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + (p == 1).float())
    return Source(model, **options)


def converted(what: Source, folder: Path) -> LoadedModel:
    convert(what.write(folder / "m.gguf"), folder / "m", lambda _: None)
    return load_model(folder / "m", name="m")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stored_as", [Q.F32, Q.F16, Q.Q8_0, Q.Q4_1])
def test_a_gguf_file_gives_the_points_of_the_model_that_it_was_made_from(
    tmp_path: Path, stored_as: GGMLQuantizationType, tied: bool
) -> None:
    what = source(stored_as=stored_as, tied=tied)
    model = converted(what, tmp_path)
    ids = [1, 200, 3, 3, 77, 261, 11]
    expected = points_of(what.model, ids, every_kind=True)
    found = ask(model.stack, "tokens", ids, *expected)
    assert errors_above(5e-5, found, expected) == {}
    assert model.config.max_positions == 101
    assert model.config.tied is tied


def test_biases_of_a_gguf_file_are_served_or_refused_when_it_is_converted(tmp_path: Path) -> None:
    what = source(biased=True)
    path = what.write(tmp_path / "m.gguf")
    try:
        convert(path, tmp_path / "m", lambda _: None)
    except CheckpointError:
        return
    model = load_model(tmp_path / "m", name="m")
    ids = [1, 200, 3, 3, 77, 261, 11]
    expected = points_of(what.model, ids)
    found = ask(model.stack, "tokens", ids, *expected)
    assert errors_above(5e-5, found, expected) == {}


def test_transformers_reads_the_same_model_from_the_same_gguf_file(tmp_path: Path) -> None:
    model = converted(source(stored_as=Q.Q8_0), tmp_path)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = [1, 200, 3, 3, 77, 261, 11]
    expected = points_of(theirs, ids)
    found = ask(model.stack, "tokens", ids, *expected)
    assert errors_above(5e-5, found, expected) == {}


@pytest.fixture
def tokenizer_of(tmp_path: Path) -> Callable[..., Tokenizer | None]:
    return lambda **keys: converted(source(keys=keys), tmp_path).tokenizer


def ids_of(*tokens: str) -> list[int]:
    return [TOKENS.index(token) for token in tokens]


def test_the_tokenizer_of_a_gguf_file_merges_bytes_by_rank_and_takes_digits_singly(
    tokenizer_of: Callable[..., Tokenizer | None],
) -> None:
    tokenizer = tokenizer_of()
    text = "the the 12\né"
    ids = encode(tokenizer, text, add_special_tokens=True)
    assert ids == ids_of("the", "Ġthe", "Ġ", "1", "2", "Ċ", BYTES[0xC3], BYTES[0xA9])
    assert tokenizer.decode(ids) == text
    assert strings(tokenizer, ids[:3]) == ["the", " the", " "]


def test_a_pre_tokenizer_without_single_digits_merges_them(
    tokenizer_of: Callable[..., Tokenizer | None],
) -> None:
    tokenizer = tokenizer_of(**{"tokenizer.ggml.pre": "gpt-2"})
    assert encode(tokenizer, "the 12", add_special_tokens=True) == ids_of("the", "Ġ", "12")


def test_a_file_that_wants_a_first_token_gets_it_unless_the_caller_does_not(
    tokenizer_of: Callable[..., Tokenizer | None],
) -> None:
    tokenizer = tokenizer_of(**{"tokenizer.ggml.add_bos_token": True})
    assert encode(tokenizer, "the", add_special_tokens=True) == ids_of("<|begin|>", "the")
    assert encode(tokenizer, "the", add_special_tokens=False) == ids_of("the")
    assert encode(tokenizer, "", add_special_tokens=True) == ids_of("<|begin|>")


def test_control_tokens_in_a_text_are_one_token_each(
    tokenizer_of: Callable[..., Tokenizer | None],
) -> None:
    tokenizer = tokenizer_of(**{"tokenizer.ggml.add_bos_token": False})
    ids = encode(tokenizer, "<|begin|>the<|end|>", add_special_tokens=True)
    assert ids == ids_of("<|begin|>", "the", "<|end|>")
    assert strings(tokenizer, ids) == ["<|begin|>", "the", "<|end|>"]


def test_an_unknown_kind_of_tokenizer_leaves_a_model_for_tokens_alone(
    tokenizer_of: Callable[..., Tokenizer | None],
) -> None:
    assert tokenizer_of(**{"tokenizer.ggml.model": "llama"}) is None


def refuse(path: Path, *words: str) -> None:
    """Converting fails with one line that has these words, and leaves nothing behind."""
    before = sorted(path.parent.iterdir())
    with pytest.raises(CheckpointError) as caught:
        convert(path, path.parent / "m", lambda _: None)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in (str(path), *words) if word not in message] == []
    assert sorted(path.parent.iterdir()) == before


REFUSED = {
    "another architecture": ({"architecture": "qwen2"}, ["general.architecture", "qwen2"]),
    "scaled rotation": ({"llama.rope.scaling.type": "yarn"}, ["llama.rope.scaling.type", "yarn"]),
    "experts": ({"llama.expert_count": 8}, ["llama.expert_count", "8"]),
    "part of a head rotated": ({"llama.rope.dimension_count": 8}, ["llama.rope.dimension_count", "8"]),
    "values of another width": ({"llama.attention.value_length": 8}, ["llama.attention.value_length", "8"]),
    "a key that nobody knows": ({"llama.logit_scale": 0.5}, ["llama.logit_scale"]),
    "no width": ({"llama.embedding_length": None}, ["llama.embedding_length", "missing"]),
}


@pytest.mark.parametrize(("keys", "words"), REFUSED.values(), ids=REFUSED)
def test_a_gguf_file_that_would_give_wrong_numbers_is_refused(
    tmp_path: Path, keys: dict[str, Any], words: list[str]
) -> None:
    refuse(source(keys=dict(keys)).write(tmp_path / "m.gguf"), *words)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q_norm.weight", "blk.x.attn_q.weight"])
def test_a_gguf_tensor_that_the_family_does_not_use_is_refused(tmp_path: Path, name: str) -> None:
    what = source(tensors={name: np.ones(8, np.float32)})
    refuse(what.write(tmp_path / "m.gguf"), name)


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_gguf_file_cut_short_is_refused(tmp_path: Path, part: float) -> None:
    path = source().write(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    refuse(path)


def test_a_gguf_file_with_a_broken_word_in_it_is_refused(tmp_path: Path) -> None:
    path = source().write(tmp_path / "m.gguf")
    content = path.read_bytes()
    for word in (b"<|begin|>", b"smollm"):
        assert content.count(word) == 1
        path.write_bytes(content.replace(word, b"\xff" + word[1:]))
        refuse(path)


@pytest.mark.parametrize("part", ["tokens", "merges"])
def test_a_gguf_tokenizer_of_which_a_part_is_missing_is_refused(tmp_path: Path, part: str) -> None:
    refuse(source(keys={f"tokenizer.ggml.{part}": None}).write(tmp_path / "m.gguf"), part)


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + bytes(1000))
    refuse(tmp_path / "m.gguf")
    (tmp_path / "m.bin").write_bytes(b"")
    refuse(tmp_path / "m.bin")
    refuse(tmp_path / "not there.gguf")
