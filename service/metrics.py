"""What is counted and measured, for Prometheus. One registry an app; every label is from a closed set.

A label that a caller could choose would be a series for each caller, kept for ever: so routes are templates, methods
and codes are those that are known, and the rest is "other".
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client import generate_latest as plain_text
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.registry import Collector

from model.checkpoint.load import LoadedModel
from model.errors import NobodyWaits
from model.sequence import Sequence as Rows
from service.errors import CODES
from service.wire.formats import with_quality

METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS".split())
OTHER = "other"
NO_ROUTE = "none"
# What alerts count: these series are there from the start, for a rate does not see the first event of a new one.
CALL_ROUTES = ("/forward", "/v2/models/{name:path}/infer", "/v2/models/{name:path}/versions/{version}/infer")
CALL_STATUSES = ("200", "429", "500", "503", "504")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300)
MOST_SEQUENCES, MOST_TOKENS = 4096, 1 << 18  # of a batch, as far as its size is told in detail

# Gauges that are read where the number lives, at the moment of a scrape: nothing can drift from what it counts.
WATCHED: dict[str, str] = {
    "ready": "1 while /readyz says 200, else 0",
    "model_silence_seconds": "since the model thread last showed that it lives",
    "queue_requests": "requests with sequences that wait for a batch",
    "queue_tokens": "rows that wait for a batch",
    "running_tokens": "rows of the batch that runs",
    "tasks": "tasks of the event loop",
    "admitted_requests": "requests that are admitted and not yet answered",
    "admitted_tokens": "rows of the requests that are admitted",
    "admitted_bytes": "bytes of bodies and answers held for the requests that are admitted",
    "max_admitted_requests": "the limit of headwater_admitted_requests",
    "max_admitted_tokens": "the limit of headwater_admitted_tokens",
    "max_admitted_bytes": "the limit of headwater_admitted_bytes",
    "device_allocated_bytes": "memory in use on the CUDA device",
    "device_reserved_bytes": "memory held from the CUDA device, in use or not",
}


class Metrics:
    """The counters, histograms and gauges of one app, safe to feed from any thread."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = _WithoutCreated(registry)
        self._watched = _Watched()
        registry.register(self._watched)
        ProcessCollector(registry=registry)

        def counter(name: str, about: str, *labels: str, unit: str = "") -> Counter:
            return Counter(f"headwater_{name}", about, labels, unit=unit, registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
            unit = name.rpartition("_")[2]
            return Histogram(f"headwater_{name}", about, labels, unit=unit, buckets=buckets, registry=registry)

        self._requests = counter("requests", "requests that ended", "route", "method", "status")
        self._refusals = counter("refusals", "requests that were refused or broke off", "code")
        self._request_seconds = histogram("request_seconds", "from arrival to the end of the answer", SECONDS, "route")
        self._wait_seconds = histogram("wait_seconds", "from arrival to the start of the batch", SECONDS)
        self._compute_seconds = histogram("compute_seconds", "a request's time in the model", SECONDS)
        self._encode_seconds = histogram("encode_seconds", "to write an answer in its format", SECONDS)
        self._received = counter("received_bytes", "bytes of bodies that came", unit="bytes")
        self._sent = counter("sent_bytes", "bytes of bodies that went out", unit="bytes")
        self._batches = counter("batches", "model calls", "outcome")
        self._batch_seconds = histogram("batch_seconds", "a model call's time", SECONDS)
        self._batch_sequences = histogram(
            "batch_sequences", "sequences of a model call", _powers_of_two(MOST_SEQUENCES)
        )
        self._batch_tokens = histogram("batch_tokens", "rows of a model call", _powers_of_two(MOST_TOKENS))
        self._layer_runs = counter("layer_runs", "layers that ran, over all model calls")
        self._model = Info("headwater_model", "the model that is served", registry=registry)
        self._parameters = Gauge("headwater_model_parameters", "numbers in the model's weights", registry=registry)
        started = Gauge("headwater_start_time_seconds", "when the app was made", unit="seconds", registry=registry)
        started.set(time.time())
        # series that are there from the start have a rate from the first event on
        for code in (*CODES, OTHER):
            self._refusals.labels(code)
        for route in CALL_ROUTES:
            for status in CALL_STATUSES:
                self._requests.labels(route, "POST", status)
        for outcome in ("ok", "failed", "left"):
            self._batches.labels(outcome)

    def describe(self, model: LoadedModel, version: str) -> None:
        """Say what is served, and by which version of the service."""
        self._model.info(
            {
                "name": model.name,
                "family": model.config.family,
                "dtype": str(model.stack.dtype).removeprefix("torch."),
                "device": str(model.stack.device),
                "weights_sha256": model.weights_sha256,
                "version": version,
            }
        )
        self._parameters.set(model.parameters)

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Read a gauge of `WATCHED` from its source at each scrape, in the thread of the scrape."""
        self._watched.add(name, read)

    def request_ended(self, line: Mapping[str, Any]) -> None:
        """Count a request by its log line: route, method, status, ms, bytes, and what else the route noted."""
        route = line["route"] or NO_ROUTE
        method = line["method"] if line["method"] in METHODS else OTHER
        self._requests.labels(route, method, str(line["status"])).inc()
        self._request_seconds.labels(route).observe(line["ms"] / 1000)
        if code := line.get("code"):
            self._refusals.labels(code if code in CODES else OTHER).inc()
        for key, histogram in (
            ("queue_ms", self._wait_seconds),
            ("compute_ms", self._compute_seconds),
            ("encode_ms", self._encode_seconds),
        ):
            if key in line:
                histogram.observe(line[key] / 1000)
        self._received.inc(line["bytes_in"])
        self._sent.inc(line["bytes_out"])

    @contextmanager
    def batch(self, sequences: Sequence[Rows]) -> Iterator[None]:
        """Measure the model call inside; the layers of one that fails are not counted, nobody knows how many ran."""
        began = time.monotonic()
        try:
            yield
        except NobodyWaits:
            self._batches.labels("left").inc()
            raise
        except BaseException:
            self._batches.labels("failed").inc()
            raise
        else:
            self._batches.labels("ok").inc()
            spans = {(one.start, one.stop) for one in sequences}
            self._layer_runs.inc(len({layer for start, stop in spans for layer in range(start, stop)}))
        finally:
            self._batch_seconds.observe(time.monotonic() - began)
            self._batch_sequences.observe(len(sequences))
            self._batch_tokens.observe(sum(one.length for one in sequences))

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Everything as it stands now, and its content type: OpenMetrics where Accept likes it best, else plain."""
        asked: dict[str, float] = {}
        for part in accept.split(","):
            media, quality = with_quality(part)
            asked[media] = max(quality, asked.get(media, 0.0))
        plain = max(asked.get(media, 0.0) for media in ("text/plain", "text/*", "*/*"))
        if asked.get("application/openmetrics-text", 0.0) > plain:
            text: bytes = openmetrics_text(self._registry)  # type: ignore[no-untyped-call]
            return text, CONTENT_TYPE_OPENMETRICS
        return plain_text(self._registry), CONTENT_TYPE_PLAIN_0_0_4


class _Watched(Collector):
    """The gauges of WATCHED; one that nobody has given a source yet has no value."""

    def __init__(self) -> None:
        self._sources: dict[str, Callable[[], float]] = {}

    def add(self, name: str, read: Callable[[], float]) -> None:
        if name not in WATCHED:
            raise ValueError(f"{name!r} is none of the gauges {', '.join(WATCHED)}")
        self._sources[name] = read

    def collect(self) -> Iterable[Metric]:
        for name, about in WATCHED.items():
            read = self._sources.get(name)
            unit = next((unit for unit in ("bytes", "seconds") if name.endswith(f"_{unit}")), "")
            yield GaugeMetricFamily(f"headwater_{name}", about, value=read() if read else None, unit=unit)


class _WithoutCreated(Collector):
    """A registry without the `_created` times that its library writes beside every series, for nobody here."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            created = f"{metric.name}_created"
            metric.samples = [sample for sample in metric.samples if sample.name != created]
            yield metric


def _powers_of_two(largest: int) -> list[float]:
    """1, 2, 4, ... up to the first that is not below `largest`."""
    return [float(1 << i) for i in range((largest - 1).bit_length() + 1)]
