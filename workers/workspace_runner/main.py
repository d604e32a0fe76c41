"""The composition root of a workspace runner: runs jobs until it is stopped.

It also exposes the runner's metrics to Prometheus.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from services.grpc_server import nats_metrics
from swe_ai_fleet.adapters.jetstream import TIMEOUT_SECONDS, Handler, JetStream, Room, WorkMessage, WorkQueue
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings, variables_of
from swe_ai_fleet.following import in_background
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.installation.nats_accounts import HOSTS_BUCKET
from swe_ai_fleet.runtime.jobs import JOBS_BUCKET, JOBS_KEPT_SECONDS, JobBoard
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import Telemetry, open_telemetry
from workers.jobs import Backend
from workers.workspace_runner.local import GIT_DIRECTORY, LocalBackend
from workers.workspace_runner.runner import RANKS, Runner, Slots, job_queues
from workers.workspace_runner.tasks import TaskRunner, task_queue

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def runner_metrics(telemetry: Telemetry, runner: Runner, log: JetStream) -> AsyncGenerator[None]:
    """Within the context, the metrics of this process include its jobs."""
    if telemetry.exposition is None:
        yield
        return

    async def jobs() -> list[Metric]:
        return runner_figures(runner.figures())

    with telemetry.exposition.source("runner", jobs):
        async with nats_metrics(telemetry, log):
            yield


def runner_figures(figures: Mapping[str, float | Mapping[str, int]]) -> list[Metric]:
    """`Runner.figures` as metrics."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    families: list[Metric] = []
    for name, kind, family, label, text in (
        ("running", GaugeMetricFamily, "jobs_running", "", "Running jobs of this runner."),
        ("waiting", GaugeMetricFamily, "jobs_waiting", "", "Jobs waiting for a slot."),
        ("adopted", CounterMetricFamily, "jobs_adopted", "", "Jobs already running when this runner took them."),
        ("wait_seconds", CounterMetricFamily, "job_wait_seconds", "", "Total time that jobs waited for a slot."),
        ("run_seconds", CounterMetricFamily, "job_run_seconds", "", "Total duration of jobs."),
        ("started", CounterMetricFamily, "jobs_started", "kind", "Jobs started."),
        ("settled", CounterMetricFamily, "jobs_settled", "kind", "Jobs that reported their outcome."),
        ("failed", CounterMetricFamily, "jobs_failed", "reason", "Jobs that ended without an outcome."),
    ):
        values = figures[name]
        metric = kind(f"fleet_runner_{family}", text, labels=[label] if label else [])
        for key, number in values.items() if isinstance(values, Mapping) else (("", values),):
            metric.add_metric([key] if label else [], number)
        families.append(metric)
    return families


@dataclass(frozen=True, kw_only=True)
class RunningRunner:
    """A running runner. `stop_taking` stops the pulling of messages, not the running jobs."""

    runner: Runner
    log: JetStream
    stop_taking: Callable[[], None]


@asynccontextmanager
async def open_runner(
    settings: Settings, chosen: RunnerSettings, *, backend: Backend | None = None
) -> AsyncGenerator[RunningRunner]:
    """Take jobs until the context ends; jobs running then continue, and other runners adopt them.

    Raises InvalidRequest naming a setting, PreconditionFailed, Unavailable.
    """
    if not settings.nats_url:
        raise InvalidRequest("a workspace runner needs a NATS server", field="nats_url", hint="set FLEET_NATS_URL")
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(connect_log(settings, name="workspace-runner", waits=TIMEOUT_SECONDS))
        if chosen.takes == "commands":
            # Otherwise orchestrators have created them, and a runner's NATS user is not allowed to.
            await log.ensure_streams()
        bucket = await log.bucket(JOBS_BUCKET, ttl_seconds=JOBS_KEPT_SECONDS)
        board = await stack.enter_async_context(JobBoard(bucket, log).watching())
        if backend is None:
            backend = await stack.enter_async_context(open_backend(settings, chosen))
        runner = Runner(
            board=board,
            backend=backend,
            settings=chosen,
            slots=Slots(chosen.concurrency, len(RANKS)),
            # Orchestrators authenticate NATS logins; without orchestrators or accounts there are no such logins.
            grants_logins=chosen.takes == "jobs" and await log.has_bucket(HOSTS_BUCKET),
        )
        await _sweep(runner)
        # Nothing is pulled while this is not set.
        taking = asyncio.Event()
        taking.set()
        for queue, handler, room in _queues(log, runner, chosen, taking):
            consuming, fault = log.consume(queue, handler, room=room), "a queue is no longer consumed"
            await stack.enter_async_context(in_background(consuming, name=queue.consumer, fault=fault))
        yield RunningRunner(runner=runner, log=log, stop_taking=taking.clear)


def open_backend(settings: Settings, chosen: RunnerSettings) -> AbstractAsyncContextManager[Backend]:
    """The configured backend. Raises InvalidRequest, PreconditionFailed, Unavailable."""
    if chosen.backend == "kubernetes":
        from workers.workspace_runner.kubernetes_backend import open_kubernetes

        return open_kubernetes(settings, chosen)
    return nullcontext(
        LocalBackend(
            settings.home / "jobs",
            {**os.environ, **variables_of(settings)},
            protocols=chosen.protocols,
            hosts=chosen.hosts,
            credentials=os.environ.get(GIT_DIRECTORY, ""),
        )
    )


def _queues(
    log: JetStream, runner: Runner, chosen: RunnerSettings, taking: asyncio.Event
) -> list[tuple[WorkQueue, Handler, Room]]:
    """The queues, each with its handler and a function that waits for free slots."""

    async def room(rank: int) -> int:
        await taking.wait()
        return await runner.slots.room(rank)

    async def handled(rank: int, work: WorkMessage) -> None:
        await runner.handle(work, rank)

    if chosen.takes == "commands":
        tasks = TaskRunner(runner=runner, log=log)
        return [(task_queue(chosen), tasks.handle, partial(room, len(RANKS) - 1))]
    return [(queue, partial(handled, rank), partial(room, rank)) for rank, queue in enumerate(job_queues(chosen))]


async def serve(settings: Settings, chosen: RunnerSettings) -> None:
    """Run until SIGTERM or SIGINT; then take no more jobs, and wait for `drain_seconds` for the running ones."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with (
        open_telemetry(settings, service="fleet-runner", mask=secret_mask(settings)) as telemetry,
        open_runner(settings, chosen) as running,
        runner_metrics(telemetry, running.runner, running.log),
    ):
        _log.info("runner.ready", backend=chosen.backend, takes=chosen.takes)
        await stopping.wait()
        running.stop_taking()
        _log.info("runner.draining", running=running.runner.slots.in_use)
        try:
            async with asyncio.timeout(chosen.drain_seconds):
                await running.runner.slots.idle()
        except TimeoutError:
            _log.info("runner.leaves_jobs", running=running.runner.slots.in_use)


async def _sweep(runner: Runner) -> None:
    """Clean up after jobs that reported their outcome, or were cancelled, while no runner was running."""
    for job in await runner.backend.held():
        outcome = await runner.board.outcome(job.ref.tenant, job.job_id)
        if outcome is not None:
            await runner.backend.finish(job.ref, failed=bool(outcome.fault))
        elif await runner.board.stop_requested(job.ref.tenant, job.job_id):
            await runner.backend.stop(job.ref)
