"""Weights in several files, and models by their name on the Hugging Face hub; the hub's cache is made here."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

from model.checkpoint.convert import convert
from model.checkpoint.hub import hub_model, is_hub_name
from model.checkpoint.load import load_model
from model.errors import CheckpointError

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
COMMIT, OLDER = "a" * 40, "b" * 40


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


# --- shards


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


# --- the hub


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A hub's cache as it is after downloads: two commits of one model, the newer in shards."""
    repository = tmp_path / "hub" / "models--river--tiny"
    make(1).save_pretrained(repository / "snapshots" / COMMIT, max_shard_size="40KB")
    make(2).save_pretrained(repository / "snapshots" / OLDER)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "v1").write_text(OLDER)
    # real snapshots are links to files that are named by their content
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted((repository / "snapshots" / COMMIT).iterdir())):
        blob = file.rename(repository / "blobs" / str(number))
        file.symlink_to(Path("..", "..", "blobs", blob.name))
    return tmp_path / "hub"


@pytest.fixture
def offline(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the only place that the hub's library looks at in this process."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return hub


@pytest.mark.parametrize(
    ("revision", "commit"), [(None, COMMIT), ("main", COMMIT), ("v1", OLDER), (COMMIT, COMMIT), (OLDER, OLDER)]
)
def test_a_hub_model_is_that_of_its_revision(offline: Path, revision: str | None, commit: str) -> None:
    directory = hub_model("river/tiny", revision, print)
    assert directory == offline / "models--river--tiny" / "snapshots" / commit
    stack = load_model(directory, name="tiny").stack
    expected = make(1 if commit == COMMIT else 2).get_input_embeddings().weight
    assert torch.equal(stack.token_embedding.weight, expected)


@pytest.mark.parametrize(("name", "revision"), [("river/none", None), ("river/tiny", "v9"), ("river/tiny", "c" * 40)])
def test_what_the_hub_does_not_have_is_one_line(offline: Path, name: str, revision: str | None) -> None:
    with pytest.raises(CheckpointError, match=f"^{name}: no such directory here, and not to be had") as caught:
        hub_model(name, revision, print)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("river/tiny", True),
        ("sentence-transformers/all-MiniLM-L6-v2", True),
        ("mgm", False),
        ("./river/tiny", False),
        ("../tiny", False),
        ("/river/tiny", False),
        ("river/tiny/", False),
        ("a/b/c", False),
        ("river/..", False),
        ("~/tiny", False),
        ("river/ti ny", False),
        ("", False),
    ],
)
def test_a_name_of_the_hub_is_told_from_a_path(name: str, form: bool) -> None:
    assert is_hub_name(name) is form


def environment(hub: Path) -> dict[str, str]:
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWATER_", "HF_"))}
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [root])
    return ours | {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}


COMMAND = [sys.executable, "-c", "import sys; from service.cli import main; sys.exit(main())", "serve", "--port", "0"]


@pytest.fixture
def served(hub: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a service that was told the model's name on the hub."""
    command = [*COMMAND, "--model", "river/tiny", "--revision", "v1"]
    process = subprocess.Popen(command, env=environment(hub), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(100, process.kill)
    watch.start()
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if "serving tiny on http://" in line:
                yield line.split("serving tiny on ")[1].split()[0]
                break
        else:
            raise AssertionError(lines)
    finally:
        watch.cancel()
        process.terminate()
        process.stderr.read()
        process.stderr.close()
        process.wait(60)


def test_the_service_takes_a_name_of_the_hub(served: str, hub: Path) -> None:
    about = httpx.get(f"{served}/model", trust_env=False, timeout=60).json()
    weights = hub / "models--river--tiny" / "snapshots" / OLDER / WEIGHTS
    assert about["name"] == "tiny"
    assert about["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--model", "river/none"], "headwater: river/none: no such directory here, and not to be had"),
        (["--model", "mgm", "--revision", "v1"], "headwater: --revision (HEADWATER_REVISION): 'v1' goes with a model"),
    ],
    ids=["no such model", "a revision of a packaged model"],
)
def test_the_service_ends_with_one_line_where_a_name_is_wrong(
    hub: Path, tmp_path: Path, options: list[str], line: str
) -> None:
    done = subprocess.run(
        [*COMMAND, *options],
        env=environment(hub), cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(line)
    assert "Traceback" not in done.stderr
