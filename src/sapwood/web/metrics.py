"""What a Prometheus server reads at `/metrics`: how much there is, how many requests, how long they took.

Gauges are computed on request. Without prometheus-client, which
is an extra, nothing is counted, and the response says what to install.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.responses import PlainTextResponse, Response

from sapwood.errors import Unavailable
from sapwood.kernel.histogram import Histograms
from sapwood.kernel.metric_families import MetricFamilies
from sapwood.kernel.node.node import Node
from sapwood.kernel.rpc.remote import Peers
from sapwood.web.relay_messages import FIGURES
from sapwood.web.stats import counted

prometheus: Any
try:
    import prometheus_client as prometheus
except ImportError:
    prometheus = None

SOON = 2.0
MISSING = "Not Found: metrics need the extra `metrics`. Install it with: pip install 'sapwood[metrics]'."


class Metrics:
    """The figures of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._registry: Any = None
        if prometheus is not None:
            self._registry = prometheus.CollectorRegistry()
            self._registry.register(self)
            prometheus.ProcessCollector(registry=self._registry)
            self._requests = prometheus.Histogram(
                "sapwood_request_seconds",
                "HTTP requests to agents, by status.",
                ["status"],
                registry=self._registry,
            )

    def answered(self, status: int, seconds: float) -> None:
        """Count a request."""
        if self._registry is not None:
            self._requests.labels(str(status) if status else "none").observe(seconds)

    def collect(self) -> Iterator[Any]:
        """Called by the registry on every read."""
        found, family = counted(self._node), prometheus.metrics_core
        gauges = {
            "sapwood_trees": ("Trees with an agent in memory.", found.trees),
            "sapwood_agents": ("Agents in memory.", found.agents),
            "sapwood_calls": ("Calls in progress.", found.calls),
            "sapwood_open_databases": ("Open databases.", found.databases),
            "sapwood_sockets": ("Open sockets.", found.sockets),
            "sapwood_ready": ("1 while the node accepts work, 0 while it is not ready.", int(found.ready)),
        }
        for name, (text, value) in gauges.items():
            yield family.GaugeMetricFamily(name, text, value=value)
        waiting = family.GaugeMetricFamily("sapwood_waiting", "Waiting items, by queue.", labels=["queue"])
        for queue, number in found.waiting.items():
            waiting.add_metric([queue], number)
        yield waiting
        yield family.CounterMetricFamily("sapwood_calls_done", "Finished calls.", value=found.calls_done)
        text = "Restarts of the process by its supervisor."
        yield family.CounterMetricFamily("sapwood_restarts", text, value=found.restarts)
        text = "Slices that blocked the process, by method."
        slow = family.CounterMetricFamily("sapwood_slow_slices", text, labels=["method"])
        text = "Duration of the longest blocking slice."
        slowest = family.GaugeMetricFamily("sapwood_slowest_slice_seconds", text, labels=["method"])
        for method, (times, seconds) in list(self._node.watchdog.slow.items()):
            slow.add_metric([method], times)
            slowest.add_metric([method], seconds)
        yield slow
        yield slowest
        stops = self._node.shared(Histograms).interrupts
        yield family.HistogramMetricFamily(
            "sapwood_interrupt_seconds",
            "Time from a stop to the end of the last model request that it cancelled.",
            buckets=list(stops.buckets()),
            sum_value=stops.total,
        )
        yield from self._labelled_families()

    def _labelled_families(self) -> Iterator[Any]:
        """Yield the metrics that other packages count."""
        families, family = self._node.shared(MetricFamilies), prometheus.metrics_core
        for counter in families.counters:
            shown = family.CounterMetricFamily(counter.name, counter.text, labels=counter.labels)
            for labels, total in counter.series.items():
                shown.add_metric(labels, total)
            yield shown
        for histogram in families.histograms:
            shown = family.HistogramMetricFamily(histogram.name, histogram.text, labels=histogram.labels)
            for labels, one in histogram.series.items():
                shown.add_metric(labels, list(one.buckets()), one.total)
            yield shown

    def figures(self) -> bytes:
        """Return the figures as Prometheus reads them; nothing if nothing is counted.

        Of one node among several, each has the labels `worker` and, if it is for one, `pool`.
        """
        if prometheus is None:
            return b""
        figures: bytes = prometheus.generate_latest(self._registry)
        if self._node.far is None:
            return figures
        labels = f'worker="{self._node.far.directory.here}"'
        if self._node.pool:
            labels += f',pool="{self._node.pool}"'
        lines = figures.decode().rstrip("\n").split("\n")  # the only end of a line: a label may hold the other ones
        return "\n".join([*(line if line.startswith("#") else _labelled(line, labels) for line in lines), ""]).encode()


def answer_figures(figures: bytes) -> Response:
    """Answer a request for the metrics."""
    if prometheus is None:
        return PlainTextResponse(MISSING, 404)
    return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")


def merged(figures: Iterable[bytes]) -> bytes:
    """Return the figures of several nodes as one text."""
    families: dict[str, list[str]] = {}
    for text in figures:
        family: list[str] = []
        for line in text.decode().split("\n"):
            if not line:
                continue
            if line.startswith("# HELP "):
                family = families.setdefault(line.split(" ", 3)[2], [line])
            elif line.startswith("#"):
                if line not in family:
                    family.append(line)
            else:
                family.append(line)
    return "\n".join([*(line for family in families.values() for line in family), ""]).encode()


def _labelled(sample: str, labels: str) -> str:
    name, has_some, rest = sample.partition("{")
    if has_some:
        return f"{name}{{{labels},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{labels}}} {value}"


async def all_figures(far: Peers, own: bytes) -> list[bytes]:
    """Return the figures of every node, in the order of their names; one that does not answer soon is left out."""
    found = {far.directory.here: own}

    async def ask(node: str) -> None:
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(SOON):
                exchange = await far.transport.open(node, FIGURES, b"")
                found[node] = await exchange.receive() or b""

    await asyncio.gather(*(ask(node) for node in await far.others()))
    return [text for _, text in sorted(found.items())]
