"""`GET /`: the viewer, a page and its files, read once and served from memory. They need no key and no model."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.errors import NotFound

_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # its links hold no version: a browser asks each time, and is told 304 while nothing changed
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class StaticFile:
    """The bytes of a file, its content type, and its tag: a digest of the bytes, in quotes."""

    content: bytes
    content_type: str
    tag: str


def read_files(root: Traversable) -> dict[str, StaticFile]:
    """What the page is made of, by the path below `root`; other kinds of files are left out."""
    return dict(_walk(root, ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, StaticFile]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _walk(one, f"{prefix}{one.name}/")
            continue
        content_type = _CONTENT_TYPES.get(one.name[one.name.rfind(".") :])
        if content_type is not None:
            content = one.read_bytes()
            yield prefix + one.name, StaticFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def viewer_router() -> APIRouter:
    """The routes of the page, with its files as they are now."""
    static = read_files(files("viewer"))
    router = APIRouter(include_in_schema=False)

    @router.head("/")
    @router.get("/")
    async def page(request: Request) -> Response:
        return _answer(static["index.html"], request)

    @router.head("/viewer/{path:path}")
    @router.get("/viewer/{path:path}")
    async def asset(path: str, request: Request) -> Response:
        found = static.get(path)
        if found is None:
            raise NotFound(f"there is no {request.url.path[:200]}")
        return _answer(found, request)

    return router


def _answer(file: StaticFile, request: Request) -> Response:
    headers = {**_HEADERS, "ETag": file.tag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.content_type)
