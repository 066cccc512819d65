"""The numbers that Prometheus asks for, made from what is there at that moment."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from strata.coordinator.stats import Histogram
from strata.coordinator.views import Views
from strata.rpc import Status
from strata.texts import printable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(views: Views) -> bytes:
    """The answer of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(views))
    found: bytes = generate_latest(registry)
    return found


class _Collector(Collector):
    def __init__(self, views: Views) -> None:
        self._views = views

    def collect(self) -> Iterable[Metric]:
        yield from self._requests()
        yield from self._workers()
        yield from self._barriers()
        yield from self._checkpoints()
        yield from self._journal()

    def _requests(self) -> Iterator[Metric]:
        stats = self._views.requests
        requests = CounterMetricFamily(
            "strata_requests", "Calls that ended, by method and gRPC status.", labels=["method", "code"]
        )
        for path, method in sorted(stats.methods.items()):
            for status in Status:
                if method.codes[status]:
                    requests.add_metric([_method(path), status.name], method.codes[status])
        yield requests
        seconds = HistogramMetricFamily(
            "strata_request_seconds", "How long calls took in the coordinator.", labels=["method"]
        )
        for path, method in sorted(stats.methods.items()):
            seconds.add_metric([_method(path)], *_buckets(method.latency))
        yield seconds
        yield _gauge("strata_connections", "Open gRPC connections.", self._views.connections())

    def _workers(self) -> Iterator[Metric]:
        by_state = GaugeMetricFamily("strata_workers", "Workers by state.", labels=["job", "state"])
        stalled = GaugeMetricFamily(
            "strata_workers_stalled", "Workers that are alive but make no progress.", labels=["job"]
        )
        held_back = GaugeMetricFamily(
            "strata_job_held_back", "1 while something holds the job back; see its explanation.", labels=["job"]
        )
        pending = GaugeMetricFamily(
            "strata_shards_pending", "Shards of the current epochs not yet consumed.", labels=["job", "dataset"]
        )
        for job in self._views.jobs():
            states, stuck = self._views.workers_by_state(job.job_id)
            name = printable(job.job_id)
            for state, count in states.items():
                by_state.add_metric([name, printable(state)], count)
            stalled.add_metric([name], stuck)
            held_back.add_metric([name], int(job.held_back))
        for dataset in self._views.datasets():
            names = [printable(dataset.job_id), printable(dataset.dataset_id)]
            pending.add_metric(names, dataset.shards_pending)
        lost = CounterMetricFamily("strata_workers_lost", "Workers that went, by cause.", labels=["cause"])
        for cause, count in sorted(self._views.journal_stats.lost.items()):
            lost.add_metric([cause], count)
        yield from (by_state, stalled, held_back, pending, lost)

    def _barriers(self) -> Iterator[Metric]:
        stats = self._views.barrier_stats
        waits = HistogramMetricFamily("strata_barrier_wait_seconds", "From the first arrival to the verdict.")
        waits.add_metric([], *_buckets(stats.waits))
        releases = HistogramMetricFamily("strata_barrier_release_seconds", "From the last arrival to the release.")
        releases.add_metric([], *_buckets(stats.releases))
        yield waits
        yield releases
        yield _counter("strata_barriers_failed", "Rounds that ended without a release.", stats.broken)
        opened = len(self._views.barriers().open)
        yield _gauge("strata_barriers_open", "Barriers that are being waited at.", opened)

    def _checkpoints(self) -> Iterator[Metric]:
        stats = self._views.journal_stats
        seconds = HistogramMetricFamily("strata_checkpoint_seconds", "From the begin of a save to its commit.")
        seconds.add_metric([], *_buckets(stats.save_seconds))
        yield seconds
        yield _counter("strata_checkpoints_committed", "Checkpoints committed.", stats.committed_count)
        yield _counter("strata_checkpoints_abandoned", "Saves that came to nothing.", stats.abandoned_count)
        yield _counter("strata_checkpoint_bytes", "Bytes of committed checkpoints.", stats.committed_bytes)

    def _journal(self) -> Iterator[Metric]:
        hub = self._views.hub
        lag = hub.machine.index - hub.durable
        yield _gauge("strata_journal_lag_records", "Records decided and not yet durable.", lag)
        yield _gauge("strata_journal_bytes", "Size of the journal on disk.", hub.journal.size_bytes())
        yield _counter("strata_journal_records", "Records ever written.", hub.durable)
        yield _gauge("strata_term", "Starts of the coordinator.", hub.machine.state.term)


def _method(path: str) -> str:
    return path.rpartition("/")[2] or "refused"


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value=value)


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Cumulative counts by bound, and the sum, as Prometheus has them."""
    total, buckets = 0, []
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets, histogram.total
