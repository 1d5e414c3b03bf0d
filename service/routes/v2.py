"""The Open Inference Protocol v2: what is served and whether it is ready, and inference with JSON or binary tensors."""

import time
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from model.points import Point, named_points
from model.selection import Wanted, result_specs
from service.door import Admitted
from service.forwarding import run_whole
from service.infer import admit_infer, check_served
from service.openapi import v2_routes as told
from service.parts import LifeDep, PartsDep
from service.routes.encoding import encoded
from service.routes.health import check_alive
from service.routes.leaving import until_disconnected
from service.wire.body import read_body
from service.wire.coding import coding_of_answer, coding_of_body, packed, unpacked
from service.wire.pieces import Piece, PiecesResponse
from service.wire.v2_answer import MODEL_VERSION, encode
from service.wire.v2_request import LENGTH_HEADER, InferCall, decode, length_of_json

router = APIRouter()
# A name may hold slashes; so the routes with more behind it come first, which here is from below.
_MODEL = "/v2/models/{name:path}"
_VERSION = _MODEL + "/versions/{version}"


async def _served(request: Request, parts: PartsDep) -> None:
    """Refuse a path whose model or version is not the one that is served."""
    if request.method == "GET" and request.path_params["name"] == f"{parts.model.name}/infer":
        raise HTTPException(405, headers={"Allow": "POST"})
    check_served(parts.model, **request.path_params)


_IS_SERVED = [Depends(_served)]


@router.get("/v2", summary="The server: its name, version and extensions", **told.SERVER)
async def server() -> dict[str, Any]:
    """The protocol's server metadata."""
    return {"name": "headwater", "version": version("headwater"), "extensions": ["binary_tensor_data"]}


@router.head("/v2/health/live", include_in_schema=False)
@router.get("/v2/health/live", summary="Whether the process and its model thread live", **told.LIVE)
async def live(request: Request, life: LifeDep) -> dict[str, bool]:
    """200 while the model thread shows signs of life; the same as /livez."""
    check_alive(life, request.app.state.parts)
    return {"live": True}


@router.head("/v2/health/ready", include_in_schema=False)
@router.get("/v2/health/ready", summary="Whether requests should be sent here", **told.READY)
async def ready(life: LifeDep) -> dict[str, bool]:
    """200 while the model is loaded and the service is not going down; the same as /readyz."""
    life.check_ready()
    return {"ready": True}


@router.get(f"{_MODEL}/ready", summary="Whether the model takes requests", dependencies=_IS_SERVED, **told.MODEL_READY)
@router.get(f"{_VERSION}/ready", summary="The same of a version", dependencies=_IS_SERVED, **told.MODEL_READY_VERSION)
async def model_ready(parts: PartsDep, life: LifeDep) -> dict[str, Any]:
    """200 while the model is loaded and the service is not going down."""
    life.check_ready()
    return {"name": parts.model.name, "ready": True}


@router.post(f"{_MODEL}/infer", summary="Run token matrices through the stack", dependencies=_IS_SERVED, **told.INFER)
@router.post(f"{_VERSION}/infer", summary="The same of a version", dependencies=_IS_SERVED, **told.INFER_VERSION)
async def infer(request: Request, parts: PartsDep) -> Response:
    """Run an inference request: the same call as POST /forward in the protocol's form, in the same batches."""
    arrived = time.monotonic()
    json_length = length_of_json(request.headers.get(LENGTH_HEADER))
    came_in = coding_of_body(request.headers.get("content-encoding"))
    goes_out = coding_of_answer(request.headers.get("accept-encoding"))
    log, place = request.state.log, request.state.place
    body = await read_body(request, parts.settings, place.body_grows)
    limit = parts.settings.max_body_bytes

    def admitted_call() -> tuple[InferCall, Admitted, dict[str, bool]]:
        asked = decode(unpacked(body, came_in, limit, place.unpacks), json_length)
        return asked, *admit_infer(asked, parts.model, parts.settings)

    # in a thread, however small: what the request selects goes for each output, so that little may stand for much
    asked, admitted, binary = await parts.off_loop(admitted_call, arrived)
    place.take(admitted.rows, admitted.held_bytes)
    left = until_disconnected(request)
    answer = await run_whole(admitted, parts, share=place.caller.share, arrived=arrived, left=left, log=log)

    def encoding() -> tuple[list[Piece], int | None]:
        pieces, length = encode(answer, binary, asked.id)
        return list(packed(pieces, goes_out)) if goes_out else pieces, length

    pieces, length = await encoded(encoding, parts, log)
    headers = {"Server-Timing": answer.server_timing(), "Vary": "Accept-Encoding"}
    if goes_out:
        headers["Content-Encoding"] = goes_out
    if length is None:
        return PiecesResponse(pieces, "application/json", headers)
    return PiecesResponse(pieces, "application/octet-stream", headers | {LENGTH_HEADER: str(length)})


@router.get(_MODEL, summary="The model: its inputs and outputs", dependencies=_IS_SERVED, **told.METADATA)
@router.get(_VERSION, summary="The same of a version", dependencies=_IS_SERVED, **told.METADATA_VERSION)
async def metadata(parts: PartsDep) -> dict[str, Any]:
    """The protocol's model metadata: inputs, of which a request has exactly one, and every point as an output.

    -1 stands for N, the rows of the input.
    """
    config = parts.model.config

    def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
        return {"name": name, "datatype": datatype, "shape": shape}

    def output(name: str, point: Point) -> dict[str, Any]:
        # a sequence of -1 rows has just the shapes that the protocol wants to see
        (spec,) = result_specs(Wanted(name, point), config, -1)
        return tensor(spec.name, "FP32", *spec.shape)

    return {
        "name": parts.model.name,
        "versions": [MODEL_VERSION],
        "platform": f"headwater_{config.family}",
        "inputs": [
            tensor("x", "FP32", -1, config.d_model),
            tensor("inputs_embeds", "FP32", -1, config.d_model),
            *([tensor("tokens", "INT64", -1)] if config.vocab_size else []),
        ],
        "outputs": [output(name, point) for name, point in named_points(config).items()],
    }
