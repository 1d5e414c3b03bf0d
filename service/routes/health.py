"""Probes: whether the process lives, and whether it takes work."""

from fastapi import APIRouter

from service.errors import Draining
from service.openapi import PROBE
from service.parts import PartsDep

router = APIRouter()


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Whether the process and its model thread live", **PROBE)
async def livez(parts: PartsDep) -> dict[str, str]:
    """200 while the model thread runs."""
    if not parts.batcher.is_alive():
        raise Draining("the model thread has ended", code="not_alive")
    return {"status": "alive"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Whether requests are taken", **PROBE)
async def readyz(parts: PartsDep) -> dict[str, str]:
    """200 while the model is loaded and the service takes work."""
    if not parts.batcher.is_open():
        raise Draining("the service is shutting down", retry_after=5)
    return {"status": "ready"}
