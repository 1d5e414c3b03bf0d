"""Runs that do not fit: how to tell, and how to give back what they held."""

import gc

import torch

_SAID = ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory; on a CPU torch says so in words alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def give_back() -> None:
    """Free what nobody refers to any more, on the device as well."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
