"""An answer in the Open Inference Protocol: JSON, and behind it the bytes of the tensors asked for in binary."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from service.wire import json_answer
from service.wire.answer import Answer
from service.wire.binary_answer import tensor_bytes
from service.wire.pieces import Piece
from service.wire.v2_tensors import DATATYPES

MODEL_VERSION = "1"  # the protocol has versions; a service has one model


def encode(answer: Answer, binary: Mapping[str, bool], request_id: str | None) -> tuple[list[Piece], int | None]:
    """The pieces of the body, and how many bytes of it are JSON; None where nothing is behind that.

    In JSON a tensor is one flat list, and -inf becomes null, as JSON has none; `binary` says of each result whether
    its bytes go behind the JSON.
    """
    head: dict[str, Any] = {"model_name": answer.model, "model_version": MODEL_VERSION}
    if request_id is not None:
        head["id"] = request_id
    text: list[Piece] = [orjson.dumps(head)[:-1] + b',"outputs":[']
    behind: list[Piece] = []
    for i, spec in enumerate(answer.specs):
        tensor = answer.tensors[spec.name]
        output = {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": spec.shape}
        comma = b"," if i else b""
        if binary[spec.name]:
            behind.append(tensor_bytes(tensor))
            text.append(comma + orjson.dumps(output | {"parameters": {"binary_data_size": len(behind[-1])}}))
        else:
            text.append(comma + orjson.dumps(output)[:-1] + b',"data":')
            text += json_answer.numbers(np.ascontiguousarray(tensor.numbers()).reshape(-1))
            text.append(b"}")
    text.append(b"]}")
    return text + behind, sum(map(len, text)) if behind else None
