"""One request and its response over a connection that blocks."""

from collections.abc import Callable
from typing import TypeVar

import httpx

from headwater_client.exchange import Request, announced_length
from headwater_client.receiving import WholeBody
from headwater_client.tensors import Array

T = TypeVar("T")


def once(http: httpx.Client, request: Request, read: Callable[[Request, httpx.Response], T]) -> T:
    """Send it, and read what comes. Raises the HeadwaterError of whatever is no answer."""
    with request.sending():
        response = http.send(http.build_request(**request.arguments()), stream=True)
    try:
        if response.status_code != 200:
            with request.receiving():
                body = response.read()
            raise request.refusal(response, body)
        request.check(response)
        return read(request, response)
    except BaseException:
        response.close()
        raise


def whole(request: Request, response: httpx.Response) -> tuple[Array, str]:
    """The body, uint8 [bytes], and the request's id as the service has it."""
    with request.receiving():
        body = WholeBody(announced_length(response))
        for piece in response.iter_bytes():
            body.add(piece)
        return body.whole(), response.headers.get("x-request-id", request.id)
