"""Weights in several files."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

from model.checkpoint.convert import convert
from model.checkpoint.load import load_model
from model.errors import CheckpointError

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def make(seed: int) -> nn.Module:
    config = GPT2Config(n_layer=3, n_embd=33, n_head=3, n_positions=43, vocab_size=41, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in shards, as transformers writes one."""
    make(1).save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    directory = tmp_path / "sharded"
    assert len(list(directory.glob("*.safetensors"))) >= 3
    assert not (directory / WEIGHTS).exists()
    return directory


def index_of(directory: Path) -> dict[str, str]:
    listed: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
    return listed


def write_index(directory: Path, weight_map: object) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def refused(directory: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_model(directory, name="m")
    message = str(caught.value)
    assert [word for word in (str(directory), *words) if word not in message] == []
    assert "\n" not in message


def test_shards_give_the_parameters_of_one_file(sharded: Path, tmp_path: Path) -> None:
    make(1).save_pretrained(tmp_path / "whole")
    one, many = (load_model(directory, name="m") for directory in (tmp_path / "whole", sharded))
    ours, theirs = one.stack.state_dict(), many.stack.state_dict()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert one.parameters == many.parameters


def test_the_hash_of_shards_is_that_of_what_sha256sum_prints(sharded: Path) -> None:
    printed = subprocess.run(
        "sha256sum model-*.safetensors | sha256sum",
        shell=True, cwd=sharded, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert load_model(sharded, name="m").weights_sha256 == printed.stdout.split()[0]


def test_one_file_goes_before_an_index(sharded: Path) -> None:
    make(2).save_pretrained(sharded)
    write_index(sharded, {"x": "gone.safetensors"})
    digest = hashlib.sha256((sharded / WEIGHTS).read_bytes()).hexdigest()
    assert load_model(sharded, name="m").weights_sha256 == digest


def test_a_shard_that_is_missing_is_named(sharded: Path) -> None:
    shard = sorted(set(index_of(sharded).values()))[1]
    (sharded / shard).unlink()
    refused(sharded, INDEX, shard, "missing")


def test_a_tensor_that_is_not_in_its_shard_is_named(sharded: Path) -> None:
    listed = index_of(sharded)
    write_index(sharded, listed | {"transformer.h.9.ln_1.weight": listed["transformer.wte.weight"]})
    refused(sharded, INDEX, "'transformer.h.9.ln_1.weight'", listed["transformer.wte.weight"])


def test_a_tensor_that_the_index_puts_elsewhere_is_named(sharded: Path) -> None:
    listed = index_of(sharded)
    other = next(file for file in listed.values() if file != listed["transformer.ln_f.bias"])
    write_index(sharded, listed | {"transformer.ln_f.bias": other})
    refused(sharded, listed["transformer.ln_f.bias"], "'transformer.ln_f.bias'")


def test_a_tensor_that_the_index_does_not_have_is_named(sharded: Path) -> None:
    listed = index_of(sharded)
    shard = sharded / listed.pop("transformer.ln_f.bias")
    write_index(sharded, listed)
    refused(sharded, shard.name, "'transformer.ln_f.bias'")


def test_a_tensor_in_two_shards_is_named(sharded: Path) -> None:
    listed = index_of(sharded)
    other = next(file for file in listed.values() if file != listed["transformer.ln_f.bias"])
    tensors = load_file(sharded / other)
    save_file(tensors | {"transformer.ln_f.bias": torch.zeros(33)}, sharded / other)
    refused(sharded, other, "'transformer.ln_f.bias'")


@pytest.mark.parametrize(
    "name", ["../{}", "/etc/passwd", "sub/{}", "..", ".", "", "..\\{}", "model\0.safetensors", "{}/"]
)
def test_a_shards_name_never_leaves_the_directory(sharded: Path, name: str) -> None:
    listed = index_of(sharded)
    shard = listed["transformer.wte.weight"]
    for outside in (sharded.parent, sharded / "sub"):
        outside.mkdir(exist_ok=True)
        (outside / shard).write_bytes((sharded / shard).read_bytes())
    write_index(sharded, {tensor: name.format(shard) if file == shard else file for tensor, file in listed.items()})
    refused(sharded, INDEX)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 1}, {"a": ["b"]}, "model.safetensors"])
def test_an_index_that_is_none_is_refused(sharded: Path, weight_map: object) -> None:
    write_index(sharded, weight_map)
    refused(sharded, INDEX, "weight_map")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_an_index_that_is_no_json_object_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    refused(sharded, INDEX)


def test_a_shard_that_is_no_safetensors_file_is_refused(sharded: Path) -> None:
    shard = index_of(sharded)["transformer.wte.weight"]
    (sharded / shard).write_bytes(b"\x80\x04.")
    refused(sharded, shard, "not a readable safetensors file")


def test_shards_need_no_conversion(sharded: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="can be served as it is"):
        convert(sharded, tmp_path / "converted", print)
