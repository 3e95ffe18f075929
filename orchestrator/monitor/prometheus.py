"""The newest readings as Prometheus' text format 0.0.4, served on a port of this host."""

from __future__ import annotations

import http.server
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.monitor.readings import DeviceReading, HostReading, RankReading
from orchestrator.monitor.store import Reading

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "trainmaster"
# What only grows, by field; everything else goes up and down.
_COUNTERS: Final = frozenset(
    {"pcie_replays", "nvlink_errors", "ecc_corrected", "ecc_uncorrected", "throttle_ns", "network", "step"}
)
_HELP: Final = {
    "step_seconds": "Seconds of the last step, without evaluation and saving.",
    "busy_seconds": "Seconds of the last step without waits for other ranks.",
    "communication_seconds": "Seconds of the last step that gradients were waited for.",
    "prefetch_seconds": "Seconds of the last step that layers were waited for.",
    "utilisation": "Share of time with a kernel running.",
    "sm_utilisation": "Share of SMs at work.",
    "dram_utilisation": "Share of the DRAM bandwidth in use.",
    "throttle_reasons": "Clocks event reasons, a bit mask of NVML.",
    "recovery_action": "What the driver asks for: 0 none, 1 GPU reset, 2 reboot, 3 drain, 4 drain and reset.",
    "lost": "Whether the driver no longer reaches the device.",
}
_IDENTITY: Final = frozenset({"time", "rank", "host", "device", "xids"})
_SOURCES: Final = {RankReading: "rank", DeviceReading: "device", HostReading: "host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of a metric, with its labels."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    name: str
    kind: str
    text: str


def text_of(readings: Iterable[Reading]) -> str:
    """Return the exposition of the readings, one of each rank, device and host."""
    metrics: dict[str, _Metric] = {}
    samples: dict[str, list[Sample]] = {}
    for reading in readings:
        for metric, sample in _samples(reading):
            metrics.setdefault(metric.name, metric)
            samples.setdefault(metric.name, []).append(sample)
    lines: list[str] = []
    for name in sorted(metrics):
        metric = metrics[name]
        lines += [f"# HELP {name} {_help(metric.text)}", f"# TYPE {name} {metric.kind}"]
        lines += [_line(sample) for sample in samples[name]]
    return "".join(f"{line}\n" for line in lines)


def _samples(reading: Reading) -> Iterator[tuple[_Metric, Sample]]:
    source = _SOURCES[type(reading)]
    labels = tuple((name, str(getattr(reading, name))) for name in ("host", "rank", "device") if hasattr(reading, name))
    for name in type(reading).__dataclass_fields__:
        value = getattr(reading, name)
        if name in _IDENTITY or value is None:
            continue
        kind = "counter" if name in _COUNTERS else "gauge"
        for part, more, number in _parts(name, value):
            full = f"{_PREFIX}_{source}_{part}" + ("_total" if kind == "counter" else "")
            words = _HELP.get(name, f"{part.replace('_', ' ').capitalize()} of a {source}.")
            metric = _Metric(name=full, kind=kind, text=words)
            yield metric, Sample(name=full, labels=(*labels, *more), value=number)


def _parts(name: str, value: Any) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:  # noqa: ANN401
    """Name, further labels and number of each value in a field."""
    if name == "network":
        for port, sent, received in value:
            yield "network_sent_bytes", (("port", port),), float(sent)
            yield "network_received_bytes", (("port", port),), float(received)
    elif name == "throttle_ns":
        for reason, nanoseconds in value:
            yield "throttle_seconds", (("reason", reason),), nanoseconds / 1e9
    elif name == "live_bytes":
        for term, held in value:
            yield "live_bytes", (("term", term),), float(held)
    else:
        yield name, (), float(value)


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
    return f"{sample.name}{{{labels}}} {number_text(sample.value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def number_text(value: float) -> str:
    """Return a number as the format wants it: NaN, +Inf and -Inf have names of their own."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


class Exposition:
    """The newest reading of each source, and the server that shows it."""

    def __init__(self, address: str, port: int) -> None:
        """Serve in a daemon thread.

        Raises:
            OSError: the port is taken, or not to be had.
        """
        self._newest: dict[tuple[str, str], Reading] = {}
        self._lock = threading.Lock()
        shown = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                found = self.path.split("?")[0] in {"/metrics", "/"}
                body = shown.text().encode() if found else b"metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by the library
                """Say nothing of each request."""

        self._server = http.server.ThreadingHTTPServer((address, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True, name="prometheus").start()

    def update(self, readings: Sequence[Reading]) -> None:
        """Take new readings; the newest of each source counts."""
        with self._lock:
            for reading in readings:
                source = _SOURCES[type(reading)]
                self._newest[source, str(getattr(reading, source))] = reading

    def text(self) -> str:
        """Return what is shown now."""
        with self._lock:
            readings = [self._newest[key] for key in sorted(self._newest)]
        return text_of(readings)

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
