"""`GET /docs/examples/FILE`: bodies in binary that /openapi.json names as examples."""

from fastapi import APIRouter
from starlette.responses import Response

from service.errors import NotFound
from service.openapi.document import example_files
from service.parts import PartsDep

router = APIRouter()


@router.get("/docs/examples/{file}", include_in_schema=False)
def example(file: str, parts: PartsDep) -> Response:
    """A body that runs as it stands on the loaded model. Raises NotFound."""
    files = example_files(parts.model)
    if file not in files:
        raise NotFound(f"there is no example {file[:80]!r}; these are: {', '.join(files)}")
    return Response(files[file], media_type="application/octet-stream")
