"""What each request is answered when it is alone, and whether another answer to it is the same.

Nearly all come out equal to the last bit, which one comparison of memory shows; only of others the numbers are read.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from bench.load.connection import Reply
from bench.load.pool import Pool
from bench.load.requests import SAFETENSORS, Request

TOLERANCE = 2e-5  # of the largest magnitude in a row, as the contract promises for float32 on a CPU
ALONE_SECONDS = 60.0

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Tally:
    """Of all answers that were compared: how many, how many equal to the last bit, the worst deviation, the wrong."""

    compared: int = 0
    equal: int = 0
    worst: float = 0.0  # of a row's largest magnitude
    wrong: int = 0
    example: str = ""

    def told(self) -> str:
        """For the report."""
        return (
            f"{self.compared} compared, {self.equal} equal to the last bit, worst deviation {self.worst:.1e} of a "
            f"row's largest, {self.wrong} wrong {self.example}".rstrip()
        )


class Answers:
    """The answers of requests that were sent one at a time to a server with nothing else to do."""

    def __init__(self) -> None:
        self._alone: dict[str, Reply] = {}
        self._ends: dict[str, tuple[bytes, bytes]] = {}
        self.tally = Tally()

    async def gather(self, pool: Pool, requests: Sequence[Request], headers: bytes = b"") -> None:
        """Ask each of them alone, once. Raises AssertionError if one is not answered."""
        for request in requests:
            assert request.name not in self._alone, f"two requests are called {request.name!r}"
            reply = await pool.exchange(request.wire(headers), ALONE_SECONDS)
            assert reply.status == 200, (request.name, reply.fault, reply.status, reply.body[:300])
            self._alone[request.name] = reply
            self._ends[request.name] = _fixed_parts(reply)

    def check(self, request: Request, reply: Reply) -> bool:
        """Whether an answer with status 200 is the right one; it is counted."""
        tally = self.tally
        tally.compared += 1
        tail, data = self._ends[request.name]
        if reply.body.endswith(data) and reply.body[: len(reply.body) - len(data)].rstrip(b" ").endswith(tail):
            tally.equal += 1
            return True
        try:
            deviation, equal = deviation_of(reply, self._alone[request.name])
        except (ValueError, KeyError, AssertionError, SafetensorError) as error:
            deviation, equal = float("inf"), False
            tally.example = tally.example or f"({request.name}: {error!r:.200})"
        tally.equal += equal
        tally.worst = max(tally.worst, deviation)
        if deviation > TOLERANCE:
            tally.wrong += 1
            tally.example = tally.example or f"({request.name}: {deviation:.1e})"
            return False
        return True


def _fixed_parts(reply: Reply) -> tuple[bytes, bytes]:
    """What must stand in any right answer: the end of what precedes the numbers, and the numbers.

    The metadata before it has times. Where times come last, as in JSON, the comparison goes the long way.
    """
    if reply.header("content-type") != SAFETENSORS:
        return b"", reply.body
    size = 8 + int.from_bytes(reply.body[:8], "little")
    header = reply.body[8:size].decode()
    begins = header.index("{", header.index('"__metadata__"'))
    _, ends = json.JSONDecoder().raw_decode(header, begins)
    return header[ends:].rstrip(" ").encode(), reply.body[size:]


def deviation_of(reply: Reply, alone: Reply) -> tuple[float, bool]:
    """By how much of a row's largest magnitude two answers differ at most, and whether they are equal to the last bit.

    Raises AssertionError where they have not the same tensors.
    """
    found, expected = tensors_of(reply), tensors_of(alone)
    assert found.keys() == expected.keys(), f"{sorted(found)} came"
    worst, equal = 0.0, True
    for name, wanted in expected.items():
        got = found[name]
        assert got.shape == wanted.shape, f"{name} has the shape {got.shape}"
        assert got.dtype == wanted.dtype, f"{name} has the dtype {got.dtype}"
        if got.tobytes() == wanted.tobytes():
            continue
        equal = False
        assert wanted.dtype.kind == "f", f"{name} differs"
        assert np.isfinite(got).all(), f"{name} is not finite"
        difference = np.abs(got.astype(np.float64) - wanted).max(axis=-1)
        scale = np.abs(wanted.astype(np.float64)).max(axis=-1)
        worst = max(worst, float((difference / np.maximum(scale, 1e-30)).max()))
    return worst, equal


def tensors_of(reply: Reply) -> dict[str, Array]:
    """The numbers of an answer in any format by their names; what has none is one tensor of its bytes."""
    match reply.header("content-type"):
        case "application/x-safetensors":
            return safetensors.numpy.load(reply.body)
        case "application/x-npy":
            return {"": np.load(io.BytesIO(reply.body), allow_pickle=False)}
        case "application/json" if b'"outputs":{' in reply.body[:200]:
            return {name: _from_json(one) for name, one in json.loads(reply.body)["outputs"].items()}
        case "application/json" if reply.body.startswith(b'{"model_name"'):
            return {
                one["name"]: np.array(one["data"], dtype=np.float32).reshape(one["shape"])
                for one in json.loads(reply.body)["outputs"]
            }
        case "application/octet-stream":
            return _from_v2(reply)
    return {"": np.frombuffer(reply.body, np.uint8)}


def _from_json(tensor: dict[str, Any]) -> Array:
    found = np.array(tensor["data"], dtype=tensor["dtype"])
    assert list(found.shape) == tensor["shape"]
    return found


def _from_v2(reply: Reply) -> dict[str, Array]:
    size = int(reply.header("inference-header-content-length") or "0")
    found, place = {}, size
    for one in json.loads(reply.body[:size])["outputs"]:
        end = place + one["parameters"]["binary_data_size"]
        found[one["name"]] = np.frombuffer(reply.body[place:end], np.float32).reshape(one["shape"])
        place = end
    assert place == len(reply.body)
    return found
