"""Lists of numbers in a parsed JSON body to arrays: checked at the speed of C, without an object a number kept."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from service.errors import invalid

Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64]
_NUMBER_TYPES = {int, float}


@dataclass(frozen=True)
class Irregular:
    """A list that makes no array: where in it, as the rest of a JSON pointer, and why."""

    pointer: str
    message: str


@dataclass(frozen=True)
class Floats:
    """A flat list of numbers that are not all integers, and what is told of the first of them where they must be."""

    numbers: npt.NDArray[np.float64]
    no_integer: Irregular


def matrix(value: Any, pointer: str) -> npt.NDArray[np.float64]:
    """[N][d] numbers. Raises Unprocessable that names the row, and within it the number, that is wrong."""
    rows = value if isinstance(value, (np.ndarray, Irregular, Floats)) else rows_of(value)
    if isinstance(rows, Irregular):
        raise invalid(pointer + rows.pointer, rows.message)
    flat = rows.numbers if isinstance(rows, Floats) else rows
    if isinstance(rows, Floats) or rows.ndim != 2:
        raise invalid(pointer, f"must be a list of rows of numbers, not a list of {len(flat)} numbers")
    return rows


def numbers(value: Any, pointer: str) -> npt.NDArray[np.float64]:
    """[N] or [N][d] numbers. Raises Unprocessable that names the place that is wrong."""
    if isinstance(value, list):
        value = rows_of(value) if value and isinstance(value[0], list) else flat_of(value)
    if isinstance(value, Irregular):
        raise invalid(pointer + value.pointer, value.message)
    if isinstance(value, Floats):
        return value.numbers
    if not isinstance(value, np.ndarray):
        raise invalid(pointer, f"must be a list of numbers, not {_kind(value)}")
    return value.astype(np.float64, copy=False)


def integers(value: Any, pointer: str) -> npt.NDArray[np.int64]:
    """[N] integers. Raises Unprocessable that names the place that is wrong."""
    found = value if isinstance(value, (np.ndarray, Irregular, Floats)) else integers_of(value)
    if isinstance(found, Floats):
        found = found.no_integer
    if isinstance(found, Irregular):
        raise invalid(pointer + found.pointer, found.message)
    if found.ndim != 1:
        raise invalid(pointer, f"must be a list of integers, not {len(found)} rows")
    return found


def rows_of(value: Any, first: int = 0, width: int | None = None) -> npt.NDArray[np.float64] | Irregular:
    """[N, d] of a list of rows, which begins at row `first` of a matrix whose rows have `width` numbers."""
    if not isinstance(value, list):
        return Irregular("", f"must be a list of rows of numbers, not {_kind(value)}")
    if not value:
        return Irregular("", "has no rows; at least 1 is needed")
    for i, row in enumerate(value, first):
        if type(row) is not list:
            return Irregular(f"/{i}", f"must be a list of numbers, not {_kind(row)}")
        if not set(map(type, row)) <= _NUMBER_TYPES:
            j = next(j for j, number in enumerate(row) if type(number) not in _NUMBER_TYPES)
            return Irregular(f"/{i}/{j}", f"must be a number, not {_kind(row[j])}")
    width = len(value[0]) if width is None else width
    if set(map(len, value)) != {width}:
        i, row = next((i, row) for i, row in enumerate(value, first) if len(row) != width)
        return Irregular(f"/{i}", f"row {i} has {len(row)} numbers, row 0 has {width}: all must have as many")
    return np.array(value, dtype=np.float64)


def flat_of(value: list[Any], first: int = 0) -> npt.NDArray[np.int64] | Floats | Irregular:
    """[N] of a list of numbers, which begins at place `first` of a longer one."""
    integers = integers_of(value, first)
    if not isinstance(integers, Irregular):
        return integers
    if not set(map(type, value)) <= _NUMBER_TYPES:
        i = next(i for i, number in enumerate(value) if type(number) not in _NUMBER_TYPES)
        return Irregular(f"/{first + i}", f"must be a number, not {_kind(value[i])}")
    return Floats(np.array(value, dtype=np.float64), integers)


def integers_of(value: Any, first: int = 0) -> npt.NDArray[np.int64] | Irregular:
    """[N] of a list of integers, which begins at place `first` of a longer one."""
    if not isinstance(value, list):
        return Irregular("", f"must be a list of integers, not {_kind(value)}")
    if not set(map(type, value)) <= {int}:
        i = next(i for i, number in enumerate(value) if type(number) is not int)
        return Irregular(f"/{first + i}", f"must be an integer, not {_kind(value[i])}")
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        i = next(i for i, number in enumerate(value) if not -(1 << 63) <= number < 1 << 63)
        return Irregular(f"/{first + i}", f"{value[i]} does not fit 64 bits")


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
