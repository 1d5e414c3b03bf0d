"""Probes: whether the process lives, whether it has started, and whether it takes work."""

from fastapi import APIRouter, Request

from service.errors import NotAlive
from service.life import Life
from service.openapi.routes import LIVE, READY, STARTED
from service.parts import LifeDep, Parts

router = APIRouter()


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Whether the process and its model thread live", **LIVE)
async def livez(request: Request, life: LifeDep) -> dict[str, str]:
    """200 while the process answers and its model thread shows signs of life; while loading and draining too."""
    check_alive(life, request.app.state.parts)
    return {"status": "alive"}


@router.head("/startedz", include_in_schema=False)
@router.get("/startedz", summary="Whether the model has been loaded", **STARTED)
async def startedz(life: LifeDep) -> dict[str, str]:
    """200 once the model is loaded and warmed up, and from then on always; before, 503 with the progress."""
    life.check_started()
    return {"status": "started"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Whether requests should be sent here", **READY)
async def readyz(life: LifeDep) -> dict[str, str]:
    """200 while the model is loaded and warmed up and the service is not going down."""
    life.check_ready()
    return {"status": "ready"}


def check_alive(life: Life, parts: Parts | None) -> None:
    """Raise NotAlive where the model thread has ended or is stuck; `parts` is None until the model is loaded."""
    life.check_alive()
    if parts is None:
        return
    if not parts.batcher.is_alive():
        raise NotAlive("the model thread has ended")
    age, limit = parts.batcher.beat_age(), parts.settings.stuck_after_seconds
    if age > limit:
        raise NotAlive(f"no sign of life from the model thread for {age:.0f} s; stuck_after_seconds is {limit:g}")
