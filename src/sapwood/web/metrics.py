"""What a Prometheus server reads at `/metrics`: how much there is, how many requests, how long they took.

Numbers of what there is are counted when somebody asks. Without prometheus-client, which
is an extra, nothing is counted, and whoever asks is told what to install.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from starlette.responses import PlainTextResponse, Response

from sapwood.kernel.node import Node
from sapwood.kernel.timings import Timings

prometheus: Any
try:
    import prometheus_client as prometheus
except ImportError:
    prometheus = None

MISSING = "Not Found: install sapwood with the extra metrics to have figures here."


class Metrics:
    """The figures of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._registry: Any = None
        if prometheus is not None:
            self._registry = prometheus.CollectorRegistry()
            self._registry.register(self)
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
        """Called by the registry when somebody reads it."""
        trees = list(self._node.trees.values())
        databases = [database for tree in trees for database in tree.databases.values()]
        agents = [actor for tree in trees for actor in tree.actors.values()]
        figures = {
            "sapwood_trees": ("Trees with an agent in memory.", len(trees)),
            "sapwood_agents": ("Agents in memory.", len(agents)),
            "sapwood_calls": ("Calls under way.", sum(len(actor.calls) for actor in agents)),
            "sapwood_open_databases": ("Databases that are open.", sum(one.is_open for one in databases)),
            "sapwood_sockets": ("Sockets that are open.", self._node.sockets.count),
            "sapwood_ready": ("1 while the node should be sent work.", int(self._node.is_ready)),
        }
        for name, (text, value) in figures.items():
            yield prometheus.metrics_core.GaugeMetricFamily(name, text, value=value)
        stops = self._node.shared(Timings).interrupts
        yield prometheus.metrics_core.HistogramMetricFamily(
            "sapwood_interrupt_seconds",
            "From a Stop to the end of the last request to a model that it stopped.",
            buckets=list(stops.buckets()),
            sum_value=stops.total,
        )

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
        lines = figures.decode().splitlines()
        return "\n".join([*(line if line.startswith("#") else _labelled(line, labels) for line in lines), ""]).encode()


def answer_figures(figures: bytes) -> Response:
    """Answer whoever asks for the figures."""
    if prometheus is None:
        return PlainTextResponse(MISSING, 404)
    return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")


def merged(figures: Iterable[bytes]) -> bytes:
    """Return the figures of several nodes as one text."""
    families: dict[str, list[str]] = {}
    for text in figures:
        family: list[str] = []
        for line in text.decode().splitlines():
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
