"""The three formats, by content type and by Accept."""

from typing import Literal

from service.errors import NotAcceptable, UnsupportedMediaType

Format = Literal["json", "safetensors", "npy"]

CONTENT_TYPES: dict[Format, str] = {
    "json": "application/json",
    "safetensors": "application/x-safetensors",
    "npy": "application/x-npy",
}
_FORMATS: dict[str, Format] = {content_type: name for name, content_type in CONTENT_TYPES.items()}
_OFFERED = ", ".join(CONTENT_TYPES.values())


def format_of_body(content_type: str | None) -> Format:
    """The format that a Content-Type header names; parameters after it are ignored."""
    essence = (content_type or "").partition(";")[0].strip().lower()
    if essence not in _FORMATS:
        came = f"{essence[:80]!r} came" if essence else "none came"
        raise UnsupportedMediaType(f"Content-Type must be one of {_OFFERED}; {came}")
    return _FORMATS[essence]


def format_of_answer(accept: str | None) -> Format:
    """The format that an Accept header prefers among those offered (RFC 9110, 12.5.1); JSON if it says nothing."""
    if accept is None or not accept.strip():
        return "json"
    best: tuple[float, int] | None = None
    chosen: Format = "json"
    ranges = [with_quality(part) for part in accept.split(",")]
    for preference, (content_type, name) in enumerate(_FORMATS.items()):
        matching = [(spec, q) for media, q in ranges if (spec := _specificity(media, content_type))]
        if not matching:
            continue
        quality = max(matching)[1]
        if quality > 0 and (best is None or (quality, -preference) > best):
            best, chosen = (quality, -preference), name
    if best is None:
        raise NotAcceptable(f"Accept must allow one of {_OFFERED}; {accept[:200]!r} does not")
    return chosen


def with_quality(part: str) -> tuple[str, float]:
    """What one part of an Accept header names, and its weight: `gzip;q=0.5` (RFC 9110, 12.4.2)."""
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    return media, quality


def _specificity(media: str, content_type: str) -> int:
    """How closely a media range names a content type; 0 where it does not."""
    if media == content_type:
        return 3
    if media == content_type.partition("/")[0] + "/*":
        return 2
    return int(media == "*/*")
