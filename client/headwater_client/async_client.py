"""The client for an event loop: the same calls, awaited."""

import asyncio
import json
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from headwater_client.answer import Answer
from headwater_client.call_fields import CallFields, forward_request
from headwater_client.errors import BrokenAnswer, HeadwaterError, NotReady, TimedOut, Unreachable
from headwater_client.exchange import Request, Service, announced_length, log, pause_after, probe
from headwater_client.loop_connections import LoopConnections
from headwater_client.map_options import MapFields, check_inputs, map_options, total_of
from headwater_client.mapping import AsyncMapRun
from headwater_client.receiving import WholeBody
from headwater_client.retrying import Retries, Tries
from headwater_client.service_state import DryRun, Model
from headwater_client.streaming import AsyncStream
from headwater_client.sync_exchange import once, whole
from headwater_client.tensors import Array

T = TypeVar("T")
TIMEOUT_SECONDS = 320.0  # above the service's own deadline, which says more than a silence does


class AsyncClient:
    """Asks one service from an event loop, or from several; arguments and answers are those of `Client`."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        retries: Retries | int | None = Retries(),  # noqa: B008  # it is frozen
        verify: Any = True,
        trust_env: bool = True,
    ) -> None:
        service = Service.at(url, api_key, timeout, verify=verify, trust_env=trust_env)
        self._retries = Retries.of(retries)
        self._connections = LoopConnections(service)

    @classmethod
    def of(cls, service: Service, retries: Retries) -> Self:
        """A client of a service that was checked before."""
        client = cls.__new__(cls)
        client._retries, client._connections = retries, LoopConnections(service)
        return client

    async def forward(self, *, request_id: str | None = None, **call: Unpack[CallFields]) -> Answer:
        """Run a sequence, or several, through the stack; as `Client.forward`."""
        return await self.answer(forward_request(call, request_id), self._retries)

    async def answer(self, request: Request, retries: Retries) -> Answer:
        """The answer to a request that is built already, tried by rules of its own."""
        return Answer(*await self._patiently(request, self._whole, retries))

    async def stream(self, *, request_id: str | None = None, **call: Unpack[CallFields]) -> AsyncStream:
        """Tensors one by one as they come: `async for name, array in await client.stream(...)`; as `Client.stream`."""
        return await self._patiently(forward_request(call, request_id), self._begun, self._retries)

    async def dry_run(self, *, n: int | None = None, **call: Unpack[CallFields]) -> DryRun:
        """What a call would cost, without running it; `n`, a number of rows, may stand for its input."""
        return DryRun.from_json(await self._json(forward_request(call, n=n, dry_run=True)))

    async def model(self) -> Model:
        """The loaded model: its sizes, its points, the limits in force."""
        return Model.from_json(await self._json(Request("GET", "model")))

    async def ready(self) -> bool:
        """Whether the service takes calls now; False too where there is none."""
        try:
            await self._once(probe(), self._whole)
        except (NotReady, Unreachable, TimedOut):
            return False
        return True

    async def wait_until_ready(self, seconds: float = 300.0) -> None:
        """Return as soon as the service takes calls. Raises what kept it from that after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                await self._once(probe(), self._whole)
                return
            except (NotReady, Unreachable, TimedOut) as error:
                wait = pause_after(error)
                if time.monotonic() + wait > deadline:
                    raise
            await asyncio.sleep(wait)

    def map(self, inputs: Iterable[Any] | AsyncIterable[Any], **options: Unpack[MapFields]) -> AsyncMapRun:
        """Ask for many sequences, several at a time: `async for` over the results, or await its `run()`.

        As `Client.map`; the inputs may be an async iterable too.
        """
        check_inputs(inputs)
        return AsyncMapRun(self, inputs, map_options(options, total_of(inputs)))

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _patiently(
        self, request: Request, read: Callable[[Request, httpx.Response], Awaitable[T]], retries: Retries
    ) -> T:
        tries = Tries(retries)
        while True:
            try:
                return await self._once(request, read)
            except HeadwaterError as error:
                wait = tries.wait_after(error)
                log.debug("again in %.2f s: %s, request %s", wait, type(error).__name__, request.id)
            await asyncio.sleep(wait)

    async def _once(self, request: Request, read: Callable[[Request, httpx.Response], Awaitable[T]]) -> T:
        http = await self._connections.here()
        try:
            with request.sending():
                built = http.build_request(**request.arguments(asynchronous=True))
                response = await http.send(built, stream=True)
        except Unreachable as lost:
            raise await self._refused_early(request, lost) from None
        try:
            if response.status_code != 200:
                with request.receiving():
                    body = await response.aread()
                raise request.refusal(response, body)
            request.check(response)
            return await read(request, response)
        except BaseException:
            await response.aclose()
            raise

    async def _refused_early(self, request: Request, lost: Unreachable) -> HeadwaterError:
        """What a service said that refused a large body before it was sent: asyncio drops what it has not read by then.

        A blocking socket still has it, so the request is made once more in a thread.
        """
        if not request.is_large:
            return lost
        try:
            await asyncio.to_thread(self._over_a_thread, request)
        except HeadwaterError as error:
            return error
        return lost

    async def _whole(self, request: Request, response: httpx.Response) -> tuple[Array, str]:
        with request.receiving():
            body = WholeBody(announced_length(response))
            async for piece in response.aiter_bytes():
                body.add(piece)
            return body.whole(), response.headers.get("x-request-id", request.id)

    async def _begun(self, request: Request, response: httpx.Response) -> AsyncStream:
        stream = AsyncStream(request, response)
        await stream.read_header()
        return stream

    async def _json(self, request: Request) -> Any:
        body, _ = await self._patiently(request, self._whole, self._retries)
        try:
            return json.loads(body.tobytes())
        except ValueError:
            raise BrokenAnswer("the answer is not JSON", request_id=request.id) from None

    def _over_a_thread(self, request: Request) -> tuple[Array, str]:
        with httpx.Client(**self._connections.service.options()) as http:
            return once(http, request, whole)
