# SPDX-License-Identifier: Apache-2.0
"""What a server counts, in the text form that Prometheus reads."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """Counters of one server; all may be used from any thread."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self._requests = Counter(
            "gossamer_requests",
            "Requests by endpoint and status",
            ["endpoint", "status"],
            registry=own,
        )
        self._errors = Counter(
            "gossamer_request_errors", "Requests that got no answer", ["endpoint"], registry=own
        )
        self._seconds = Histogram(
            "gossamer_request_seconds",
            "Time from the first byte of a request to the last of its answer",
            ["endpoint"],
            buckets=_SECONDS,
            registry=own,
        )
        self.queue = Gauge("gossamer_queue_length", "Requests that wait", registry=own)
        self.batch_texts = Histogram(
            "gossamer_batch_texts", "Texts of one call of the model", buckets=_COUNTS, registry=own
        )
        self.batch_tokens = Histogram(
            "gossamer_batch_tokens",
            "Tokens of one call of the model",
            buckets=_TOKENS,
            registry=own,
        )
        self.generated_tokens = Counter(
            "gossamer_generated_tokens", "Tokens of generated texts", registry=own
        )

    def answered(self, endpoint: str, status: str, seconds: float, *, failed: bool) -> None:
        """Count one request."""
        self._requests.labels(endpoint, status).inc()
        self._seconds.labels(endpoint).observe(seconds)
        if failed:
            self._errors.labels(endpoint).inc()

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)
