"""Configs that few checkpoints have, with random weights: every point against transformers, from its own files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig

from model.checkpoint.gpt2 import ACTIVATIONS
from model.checkpoint.load import load_model
from model.points import points_of as points_of_config
from tests.model.collect import ask, errors_above
from tests.model.huggingface import points_of, pretrained
from tests.model.tiny import gpt2, llama, saved

IDS = [40, 0, 11, 7, 7, 23, 2]
TOLERANCE = 5e-5
WEIGHTS = "model.safetensors"


def rotary(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def check(directory: Path, model: nn.Module) -> None:
    stack = load_model(directory, name="m").stack
    expected = points_of(model, IDS, every_kind=True)
    assert {point.name for point in points_of_config(stack.config)} <= set(expected)
    assert stack.config.unembedding is ("logits" in expected)
    found = ask(stack, "tokens", IDS, *expected)
    assert errors_above(TOLERANCE, found, expected) == {}


GPT2 = {
    "as it is": {},
    "scores divided by the layer": {"scale_attn_by_inverse_layer_idx": True},
    "scores not scaled": {"scale_attn_weights": False},
    "scores divided by the layer alone": {
        "scale_attn_by_inverse_layer_idx": True,
        "scale_attn_weights": False,
    },
    "scaled in another order": {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
    "a narrow FFN": {"n_inner": 13},
    "square matrices all through": {"n_inner": 33},
    "one head": {"n_head": 1},
    "many narrow heads": {"n_head": 11},
    "one layer": {"n_layer": 1},
    "another eps": {"layer_norm_epsilon": 0.1},
    "untied": {"tie_word_embeddings": False},
    **{f"activation {name}": {"activation_function": name} for name in ACTIVATIONS},
}
LLAMA = {
    "as it is": {},
    "one kv head for all": {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 10},
    "kv heads for two each": {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10},
    "heads wider than d / A": {"head_dim": 14},
    "heads narrower than d / A": {"head_dim": 4},
    "attention biases": {"attention_bias": True},
    "attention biases, shared kv": {"attention_bias": True, "num_key_value_heads": 1},
    "FFN biases": {"mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "square matrices all through": {"intermediate_size": 30},
    "slow rotation": rotary(500000.0),
    "fast rotation": rotary(13.0),
    "another eps": {"rms_norm_eps": 0.1},
    "activation gelu": {"hidden_act": "gelu"},
    "activation relu": {"hidden_act": "relu"},
}


@pytest.mark.parametrize("keys", GPT2.values(), ids=GPT2)
def test_gpt2_of_any_config_gives_the_points_of_transformers(tmp_path: Path, keys: dict[str, Any]) -> None:
    check(tmp_path, saved(tmp_path, gpt2(**keys)))


@pytest.mark.parametrize("keys", LLAMA.values(), ids=LLAMA)
def test_llama_of_any_config_gives_the_points_of_transformers(tmp_path: Path, keys: dict[str, Any]) -> None:
    check(tmp_path, saved(tmp_path, llama(**keys)))


@pytest.mark.parametrize("config", [llama(), gpt2(tie_word_embeddings=False)], ids=["llama", "gpt2 that ties nothing"])
def test_a_model_without_a_head_has_no_logits(tmp_path: Path, config: PreTrainedConfig) -> None:
    check(tmp_path, saved(tmp_path, config, head=False))


def test_a_tied_model_without_a_head_has_the_logits_of_its_embedding(tmp_path: Path) -> None:
    saved(tmp_path, gpt2(), head=False)
    check(tmp_path, pretrained(tmp_path))


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize(("config", "prefix"), [(gpt2(), "transformer."), (llama(tie_word_embeddings=True), "model.")])
def test_the_familys_prefix_may_stand_before_the_names_or_not(
    tmp_path: Path, config: PreTrainedConfig, prefix: str, head: bool
) -> None:
    model = saved(tmp_path, config, head=head)
    tensors = load_file(tmp_path / WEIGHTS)
    assert all(name.startswith(prefix) is head for name in tensors)
    renamed = {name.removeprefix(prefix) if head else prefix + name: x for name, x in tensors.items()}
    save_file(renamed, tmp_path / WEIGHTS, metadata={"format": "pt"})
    if not head:
        model = pretrained(tmp_path)
    check(tmp_path, model)


@pytest.mark.parametrize("config", [gpt2(), llama(tie_word_embeddings=True)], ids=["gpt2", "llama"])
def test_a_tied_head_that_is_stored_as_well_is_accepted(tmp_path: Path, config: PreTrainedConfig) -> None:
    model = saved(tmp_path, config)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["lm_head.weight"] = model.get_input_embeddings().weight.detach().clone()
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    check(tmp_path, model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("config", [gpt2(), llama()], ids=["gpt2", "llama"])
def test_weights_stored_in_another_dtype_are_computed_with_in_float32(
    tmp_path: Path, config: PreTrainedConfig, dtype: torch.dtype
) -> None:
    saved(tmp_path, config).to(dtype).save_pretrained(tmp_path)
    check(tmp_path, pretrained(tmp_path))


def test_config_keys_of_older_files_mean_what_they_meant(tmp_path: Path) -> None:
    model = saved(tmp_path, llama(**rotary(13.0)))
    path = tmp_path / "config.json"
    text = path.read_text()
    of_now = '"rope_parameters": {\n    "rope_theta": 13.0,\n    "rope_type": "default"\n  }'
    assert of_now in text
    path.write_text(text.replace(of_now, '"rope_theta": 13.0, "rope_scaling": null'))
    check(tmp_path, model)
