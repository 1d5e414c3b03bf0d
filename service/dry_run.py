"""What a call would cost, without running it."""

from typing import Any

from model.checkpoint.load import LoadedModel
from model.cost import operations
from service.door import Admitted, check_size, fit
from service.errors import NotAcceptable, ServiceError, TooLarge, Unprocessable
from service.problem import problem_body
from service.settings import Settings
from service.wire.call import ForwardCall
from service.wire.formats import Format

REFUSALS = (Unprocessable, TooLarge, NotAcceptable)


def estimate(call: ForwardCall, answer_format: Format, model: LoadedModel, settings: Settings) -> dict[str, Any]:
    """Whether a call would be admitted, and its cost; where it does not fit the model, why not."""
    try:
        admitted = fit(call, answer_format, model, settings)
    except REFUSALS as error:
        return refused(error)
    cost = {
        "tokens": admitted.rows,
        "layers_run": max(sequence.stop - sequence.start for sequence in admitted.sequences),
        "flops": sum(operations(model.config, sequence) for sequence in admitted.sequences),
        "answer_bytes": _bytes(admitted, answer_format),
        "results": {spec.name: {"shape": spec.shape, "dtype": spec.dtype} for spec in admitted.specs},
    }
    try:
        check_size(admitted, answer_format, settings)
    except REFUSALS as error:
        return refused(error) | cost
    return {"admitted": True, "code": None} | cost


def refused(error: ServiceError) -> dict[str, Any]:
    """A refusal as the outcome of a dry run: what its problem+json would say of it."""
    body = problem_body(error)
    return {"admitted": False} | {key: body[key] for key in ("code", "status", "detail", "errors") if key in body}


def _bytes(admitted: Admitted, answer_format: Format) -> int:
    """Of the tensors in binary, exactly; of the whole answer in JSON, about."""
    return admitted.json_nbytes if answer_format == "json" else admitted.nbytes
