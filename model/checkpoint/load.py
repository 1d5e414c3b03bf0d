"""From a directory on disk to a stack in memory."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.checkpoint import bert, gpt2, gpt_neo, gpt_neox, llama, mistral, opt, qwen2, textbook
from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family
from model.checkpoint.tensors import CheckpointTensors, check_finite
from model.checkpoint.weight_files import read_json, weight_files
from model.config import DTYPES, StackConfig
from model.errors import CheckpointError
from model.stack import Stack
from model.tokenizer import TokenBytes, load_tokenizer, token_bytes

FAMILIES = {
    family.model_type: family
    for family in (
        textbook.FAMILY,
        gpt2.FAMILY,
        llama.FAMILY,
        mistral.FAMILY,
        qwen2.FAMILY,
        gpt_neox.FAMILY,
        opt.FAMILY,
        gpt_neo.FAMILY,
        bert.FAMILY,
    )
}


@dataclass(frozen=True)
class LoadedModel:
    """A stack ready to run, its tokenizer (None where the checkpoint has none), and its weights' SHA-256.

    `token_bytes` tells how few tokens a text can have; None where its bytes do not tell.
    """

    name: str
    stack: Stack
    tokenizer: Tokenizer | None
    weights_sha256: str
    parameters: int
    token_bytes: TokenBytes | None = None

    @property
    def config(self) -> StackConfig:
        """The shape of the stack."""
        return self.stack.config


def family_of(raw: dict[str, Any], where: str) -> Family:
    """The adapter for the config's `model_type`."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise CheckpointError(
            f"{where}: model_type is {model_type!r}, an unknown family; known are {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type]


def read_config(directory: Path, ignore: Collection[str] = ()) -> tuple[Family, StackConfig]:
    """The family and the shape that a directory's config.json describes."""
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{directory}: there is no config.json in it")
    raw = read_json(path)
    family = family_of(raw, str(path))
    keys = ConfigKeys(raw, str(path))
    try:
        config = family.read_config(keys)
    except CheckpointError as error:
        # a StackConfig that makes no stack does not know where its numbers come from
        raise CheckpointError(str(error).replace("config:", f"{path}:", 1)) from None
    keys.finish(family.harmless, ignore)
    return family, config


def load_model(
    directory: Path,
    *,
    name: str,
    dtype: str = "float32",
    device: str = "cpu",
    ignore_config_keys: Collection[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> LoadedModel:
    """Load config.json + model.safetensors, or its shards [+ tokenizer.json].

    Weights stay mapped from the file where dtype and layout allow. `progress` is told how far it is, and may raise to
    stop it. Raises CheckpointError with one line that names the file and what is wrong with it.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory")
    family, config = read_config(directory, ignore_config_keys)
    files = weight_files(directory)
    tensors = CheckpointTensors(files, family.prefix)
    state = dict(family.weights(config, tensors))
    tensors.finish()
    with torch.device("meta"):
        stack = Stack(config)
    # the same tensor under two names (tied) must stay one
    stored = {id(t): (key, t) for key, t in state.items()}
    moved: dict[int, Tensor] = {}
    for number, (identity, (key, tensor)) in enumerate(stored.items()):
        progress(f"{number} of {len(stored)} tensors")
        try:
            moved[identity] = tensor.to(device=device, dtype=DTYPES[dtype])
        except torch.OutOfMemoryError:
            raise CheckpointError(f"{files.path}: does not fit into the memory of {device} as {dtype}") from None
        if moved[identity].dtype != tensor.dtype:  # what is finite in float32 may not be so in float16
            check_finite(moved[identity], f"{files.path}: parameter {key!r} in {dtype}")
    try:
        stack.load_state_dict({key: moved[id(t)] for key, t in state.items()}, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"{files.path}: {error}") from None
    stack.requires_grad_(False).eval()
    parameters = sum(p.numel() for p in {p.data_ptr(): p for p in stack.parameters()}.values())
    stack.pack()
    tokenizer = load_tokenizer(directory / "tokenizer.json", config.vocab_size)
    progress("taking the hash of the weights")
    return LoadedModel(
        name=name,
        stack=stack,
        tokenizer=tokenizer,
        token_bytes=None if tokenizer is None else token_bytes(tokenizer),
        weights_sha256=files.sha256(),
        parameters=parameters,
    )
