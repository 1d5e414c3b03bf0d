"""`GET /metrics`: the state of the service for Prometheus."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.metrics import Metrics
from service.openapi.routes import METRICS

router = APIRouter()


@router.get("/metrics", summary="Counters, times and gauges for Prometheus", **METRICS)
def metrics(request: Request) -> Response:
    """All metrics, in Prometheus' text format or, where Accept prefers it, in OpenMetrics.

    No coroutine, so that it is written in a thread and the event loop stays free for others.
    """
    measured: Metrics = request.app.state.metrics
    body, content_type = measured.exposition(",".join(request.headers.getlist("accept")))
    return Response(body, headers={"Content-Type": content_type, "Vary": "Accept"})
