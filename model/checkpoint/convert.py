"""`headwater convert`: other formats into the one that is served."""

import shutil
import warnings
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint.gguf import Progress, convert_gguf
from model.checkpoint.load import read_config
from model.checkpoint.weight_files import INDEX, WEIGHTS
from model.checkpoint.write import new_directory, write_weights
from model.errors import CheckpointError

PICKLE = "pytorch_model.bin"
_CARRIED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)


def convert(source: Path, destination: Path, progress: Progress) -> None:
    """Turn a GGUF file, or a directory with config.json + pytorch_model.bin, into a directory to serve.

    A pickle is read with `weights_only=True`: tensors, never code. Raises CheckpointError.
    """
    if source.is_file() and source.suffix == ".gguf":
        convert_gguf(source, destination, progress)
    elif source.is_dir():
        _convert_pickle(source, destination, progress)
    else:
        raise CheckpointError(f"{source}: neither a .gguf file nor a directory")


def copy_served(source: Path, destination: Path) -> None:
    """Copy a directory that can be served as it is, without what stands beside it. Raises CheckpointError."""
    with new_directory(destination) as directory:
        for name in (*_CARRIED, WEIGHTS):
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)


def _convert_pickle(source: Path, destination: Path, progress: Progress) -> None:
    for name in (WEIGHTS, INDEX):
        if (source / name).exists():
            raise CheckpointError(f"{source}: has a {name} and can be served as it is")
    if not (source / PICKLE).is_file():
        raise CheckpointError(f"{source}: there is no {PICKLE} in it")
    _, config = read_config(source)
    progress(f"reading {PICKLE}")
    is_zip = zipfile.is_zipfile(source / PICKLE)  # as torch writes since 1.6; only these can be mapped
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(source / PICKLE, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # what the unpickler raises on a damaged file has no common name
        # not torch's own words: they advise to load the file without the check
        raise CheckpointError(
            f"{source / PICKLE}: holds more than weights, or is damaged ({type(error).__name__})"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise CheckpointError(f"{source / PICKLE}: is not a table of tensors")
    if config.tied:
        state.pop("lm_head.weight", None) if _is_embedding(state) else None
    with new_directory(destination) as directory:
        for name in _CARRIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)
        progress(f"writing {WEIGHTS}")
        write_weights(directory, {name: tensor.clone().contiguous() for name, tensor in state.items()})


def _is_embedding(state: dict[str, Tensor]) -> bool:
    """Whether the unembedding is another tensor's memory once more, which safetensors does not store twice."""
    head = state.get("lm_head.weight")
    return head is not None and any(
        tensor.data_ptr() == head.data_ptr() for name, tensor in state.items() if name != "lm_head.weight"
    )
