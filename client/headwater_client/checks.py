"""Checks of single arguments: the ValueError names the field, what it must be, and of a wrong value its type alone.

What was given stands in no message: it may be somebody's text, or long.
"""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np


def integer(field: str, value: Any, *, least: int | None = None) -> int:
    """An integer: Python's, numpy's, torch's; no truth value, no text, no fraction."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{field}: must be an integer, not {kind(value)}") from None
    if least is not None and number < least:
        raise ValueError(f"{field}: must be at least {least}, not {number}")
    return number


def integers(field: str, values: Any) -> list[int]:
    """A list of integers from whatever holds some: a list, a range, an array, a tensor."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # rows of several lengths; a tensor of another device
        raise ValueError(f"{field}: must be a list of integers, and is a {kind(values)} that is none") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        found = kind(values) if array.ndim == 0 else f"shape {list(array.shape)} and dtype {array.dtype}"
        raise ValueError(f"{field}: must be a list of integers of up to 64 bits, not {found}")
    return [int(one) for one in array.tolist()]


def string(field: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"{field}: must be a string, not {kind(value)}")
    return value


def flag(field: str, value: Any) -> bool:
    """A truth value: a text such as "no" is none."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{field}: must be True or False, not {kind(value)}")
    return bool(value)


def positive(field: str, value: Any) -> float:
    """A number above 0, of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{field}: must be a number of seconds, not {kind(value)}")
    if not value > 0:
        raise ValueError(f"{field}: must be a positive number of seconds, not {value}")
    return float(value)


def not_one(field: str, values: Any) -> None:
    """That something is not a single text or object where several are wanted: its letters or keys would be taken."""
    if isinstance(values, str | bytes | bytearray | Mapping):
        raise ValueError(f"{field}: must be a collection of inputs, not one {kind(values)}; put it into a list")


def kind(value: Any) -> str:
    """What the type of a value is called."""
    return type(value).__name__
