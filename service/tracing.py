"""OpenTelemetry traces: one span a request, and below it what it waited for, ran and was written in.

Off unless a collector is named, and then nothing of OpenTelemetry is imported. Spans are made when a request has
ended, out of times that are measured anyway, and sent from a thread of their own.
"""

import logging
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

log = logging.getLogger("headwater.tracing")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
CLOSE_SECONDS = 2.0  # how long the last spans may take to be sent
CHILDREN = ("queue", "compute", "encode")
_METHODS = frozenset("CONNECT DELETE GET HEAD OPTIONS PATCH POST PUT TRACE".split())
# W3C Trace Context: version, trace id, parent id, flags; version ff and ids of zeros are not valid
_TRACEPARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.DOTALL
)

Headers = Iterable[tuple[bytes, bytes]]


def trace_id_of(headers: Headers) -> str | None:
    """The trace id of a valid `traceparent` header, 32 hexadecimal digits; None where there is none."""
    given = [value.strip() for name, value in headers if name == b"traceparent"]
    if len(given) != 1 or (match := _TRACEPARENT.fullmatch(given[0])) is None:
        return None
    version, trace_id, more = match.groups()
    if version == b"00" and more is not None:
        return None  # later versions alone may go on behind the flags
    return str(trace_id, "ascii")


def open_tracing(environment: Mapping[str, str], version: str) -> "Tracing | None":
    """Tracing, if the environment names a collector; what stands in the way is one warning, and no reason to stop."""
    named = next((name for name in ENDPOINTS if environment.get(name)), None)
    if named is None:
        return None
    try:
        tracing = Tracing(version)
    except ImportError as error:
        log.warning("%s is set, but no traces are sent: %s; pip install 'headwater[otel]'", named, error)
        return None
    except Exception as error:  # a variable that the SDK cannot read
        log.warning("%s is set, but no traces are sent: %s", named, error)
        return None
    protocols = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((environment[name] for name in protocols if environment.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        log.warning("traces are sent as http/protobuf, not as %s", protocol)
    return tracing


class Tracing:
    """Makes the spans of requests, and sends them until `close`. Raises ImportError without the extra `otel`."""

    def __init__(self, version: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # a collector that is away is told of once a batch, not at each of the exporter's tries
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
        service = Resource.create({"service.name": "headwater", "service.version": version})
        # what the environment says of the service comes before what the program says
        resource = service.merge(OTELResourceDetector().detect())
        # not at exit: that would wait for a collector that is away for as long as it likes
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("headwater", version)

    def request_ended(self, line: Mapping[str, Any], scope: Mapping[str, Any], began_ns: int) -> str | None:
        """Make the spans of a request by its log line; its trace id. Never raises, and waits for nothing.

        `began_ns` is when it came, in nanoseconds since 1970. A caller's trace is gone on with.
        """
        try:
            return self._record(line, scope, began_ns)
        except Exception:
            log.exception("a request left no trace")
            return None

    def close(self) -> None:
        """Send what is left; gives up after CLOSE_SECONDS."""
        closing = threading.Thread(target=self._provider.shutdown, name="headwater-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def _record(self, line: Mapping[str, Any], scope: Mapping[str, Any], began_ns: int) -> str | None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        continues = trace_id_of(scope["headers"]) is not None
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate") and continues
        }
        ended_ns = began_ns + _nanoseconds(line["ms"])
        method = line["method"] if line["method"] in _METHODS else None
        span = self._tracer.start_span(
            " ".join(part for part in (method or "HTTP", line["route"]) if part),
            TraceContextTextMapPropagator().extract(carrier),
            trace.SpanKind.SERVER,
            _attributes(line, scope, method or "_OTHER"),
            start_time=began_ns,
        )
        if line["status"] >= 500:
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        inside = trace.set_span_in_context(span)
        at = began_ns
        for name in CHILDREN:
            if (ms := line.get(f"{name}_ms")) is not None:
                child = self._tracer.start_span(name, inside, start_time=at)
                at = min(at + _nanoseconds(ms), ended_ns)
                child.end(at)
        span.end(ended_ns)
        context = span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None


def _attributes(line: Mapping[str, Any], scope: Mapping[str, Any], method: str) -> dict[str, str | int]:
    """By the semantic conventions for HTTP servers, as far as they hold nothing that a caller wrote: no path."""
    attributes: dict[str, str | int | None] = {
        "http.request.method": method,
        "http.route": line["route"],
        "http.response.status_code": line["status"] or None,
        "http.request.body.size": line["bytes_in"],
        "http.response.body.size": line["bytes_out"],
        "url.scheme": scope.get("scheme"),
        "network.protocol.version": scope.get("http_version"),
        "error.type": str(line["status"]) if line["status"] >= 500 else None,
        "headwater.request_id": line["request_id"],
        "headwater.code": line.get("code"),
        "headwater.tokens": line.get("tokens"),
        "headwater.sequences": line.get("sequences"),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _nanoseconds(ms: float) -> int:
    return int(1e6 * ms)
