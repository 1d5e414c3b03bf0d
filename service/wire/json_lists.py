"""Nested lists of a parsed JSON body to arrays: checked at the speed of C, without an object a number."""

from typing import Any

import numpy as np
import numpy.typing as npt

from service.errors import invalid

_NUMBERS = {int, float}


def matrix(value: Any, pointer: str) -> npt.NDArray[np.float64]:
    """[N][d] numbers. Raises Unprocessable that names the row, and within it the number, that is wrong."""
    if not isinstance(value, list):
        raise invalid(pointer, f"must be a list of rows of numbers, not {_kind(value)}")
    if not value:
        raise invalid(pointer, "has no rows; at least 1 is needed")
    for i, row in enumerate(value):
        if type(row) is not list:
            raise invalid(f"{pointer}/{i}", f"must be a list of numbers, not {_kind(row)}")
        if not set(map(type, row)) <= _NUMBERS:
            j = next(j for j, number in enumerate(row) if type(number) not in _NUMBERS)
            raise invalid(f"{pointer}/{i}/{j}", f"must be a number, not {_kind(row[j])}")
    widths = set(map(len, value))
    if len(widths) > 1:
        first = len(value[0])
        i = next(i for i, row in enumerate(value) if len(row) != first)
        raise invalid(
            f"{pointer}/{i}", f"row {i} has {len(value[i])} numbers, row 0 has {first}: all must have as many"
        )
    return np.array(value, dtype=np.float64)


def integers(value: Any, pointer: str) -> npt.NDArray[np.int64]:
    """[N] integers. Raises Unprocessable that names the place that is wrong."""
    if not isinstance(value, list):
        raise invalid(pointer, f"must be a list of integers, not {_kind(value)}")
    if not set(map(type, value)) <= {int}:
        i = next(i for i, number in enumerate(value) if type(number) is not int)
        raise invalid(f"{pointer}/{i}", f"must be an integer, not {_kind(value[i])}")
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        i = next(i for i, number in enumerate(value) if not -(1 << 63) <= number < 1 << 63)
        raise invalid(f"{pointer}/{i}", f"{value[i]} does not fit 64 bits") from None


def _kind(value: Any) -> str:
    """A value, or the kind of it where it may be long."""
    match value:
        case list():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
        case str():
            return f"the string {value!r:.40}"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _:
            return f"{value!r:.40}"
