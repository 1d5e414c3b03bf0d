"""The client for threads: each call waits for its answer. One client may be used by several threads at once."""

import json
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from headwater_client.answer import Answer
from headwater_client.call_fields import CallFields, forward_request
from headwater_client.errors import BrokenAnswer, ClientClosed, HeadwaterError, NotReady, TimedOut, Unreachable
from headwater_client.exchange import Request, Service, log, pause_after, probe
from headwater_client.map_options import MapFields, check_inputs, map_options, total_of
from headwater_client.retrying import Retries, Tries
from headwater_client.service_state import DryRun, Model
from headwater_client.streaming import Stream
from headwater_client.sync_exchange import once, whole
from headwater_client.sync_map import MapRun

T = TypeVar("T")
TIMEOUT_SECONDS = 320.0  # above the service's own deadline, which says more than a silence does


class Client:
    """Asks one service.

    url: where it is, such as http://127.0.0.1:8000.
    api_key: sent as `Authorization: Bearer`; it stands in no log line, message or repr.
    timeout: seconds for which the service may be silent; None for no limit.
    retries: `Retries`, or a number of retries beyond the first try.
    verify: as in httpx: False, or an ssl.SSLContext. trust_env: whether HTTP_PROXY and the like are heeded.
    """

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
        self._service = Service.at(url, api_key, timeout, verify=verify, trust_env=trust_env)
        self._retries = Retries.of(retries)
        self._http = httpx.Client(**self._service.options())

    def forward(self, *, request_id: str | None = None, **call: Unpack[CallFields]) -> Answer:
        """Run a sequence, or several, through the stack: the arguments are those of `CallFields`.

        Raises a HeadwaterError for whatever keeps the answer from coming, ValueError for what is no request at all.
        """
        request = forward_request(call, request_id)
        return Answer(*self._patiently(request, whole))

    def stream(self, *, request_id: str | None = None, **call: Unpack[CallFields]) -> Stream:
        """The same call, whose tensors are given one by one as they come: `for name, array in client.stream(...)`.

        The service makes answers above its `stream_above_bytes` layer by layer, and smaller ones whole. What can be
        refused is raised here; what was begun is not asked again.
        """
        return self._patiently(forward_request(call, request_id), Stream)

    def dry_run(self, *, n: int | None = None, **call: Unpack[CallFields]) -> DryRun:
        """What a call would cost, without running it; `n`, a number of rows, may stand for its input."""
        return DryRun.from_json(self._json(forward_request(call, n=n, dry_run=True)))

    def model(self) -> Model:
        """The loaded model: its sizes, its points, the limits in force."""
        return Model.from_json(self._json(Request("GET", "model")))

    def ready(self) -> bool:
        """Whether the service takes calls now; False too where there is none."""
        try:
            once(self._open(), probe(), whole)
        except (NotReady, Unreachable, TimedOut):
            return False
        return True

    def wait_until_ready(self, seconds: float = 300.0) -> None:
        """Return as soon as the service takes calls. Raises what kept it from that after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                once(self._open(), probe(), whole)
                return
            except (NotReady, Unreachable, TimedOut) as error:
                wait = pause_after(error)
                if time.monotonic() + wait > deadline:
                    raise
            time.sleep(wait)

    def map(self, inputs: Iterable[Any], **options: Unpack[MapFields]) -> MapRun:
        """Ask for many sequences, several at a time: iterate over the results, or `run()` it to its end.

        inputs: texts, token ids [N], matrices x [N, d], or objects with fields; any iterable, which is read no further
        than is needed, and in other threads, so that it may take its time. The options are those of `MapFields`.
        """
        check_inputs(inputs)
        return MapRun(self._service, self._retries, inputs, map_options(options, total_of(inputs)), self._open)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open(self) -> httpx.Client:
        if self._http.is_closed:
            raise ClientClosed
        return self._http

    def _patiently(self, request: Request, read: Callable[[Request, httpx.Response], T]) -> T:
        tries = Tries(self._retries)
        while True:
            try:
                return once(self._open(), request, read)
            except HeadwaterError as error:
                wait = tries.wait_after(error)
                log.debug("again in %.2f s: %s, request %s", wait, type(error).__name__, request.id)
            time.sleep(wait)

    def _json(self, request: Request) -> Any:
        body, _ = self._patiently(request, whole)
        try:
            return json.loads(body.tobytes())
        except ValueError:
            raise BrokenAnswer("the answer is not JSON", request_id=request.id) from None
