"""Tasks and planning events that come in over NATS: which subjects feed which use case."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.errors import parsed_message
from services.orchestrator.planning import planning_event
from services.orchestrator.requests import not_for_tasks, submitted_task
from swe_ai_fleet.adapters.jetstream import JetStream, PermanentError, WorkMessage, WorkQueue
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest
from swe_ai_fleet.domain.task import DEFAULT_TENANT, MAX_PRIORITY, Task
from swe_ai_fleet.following import in_background
from swe_ai_fleet.orchestrator.derivations import PlanningEvents
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.telemetry import own_telemetry

TASKS = WorkQueue(
    stream="AGENT_COMMANDS", subjects=("agent.cmd.execute", "agent.cmd.execute.>"), consumer="orchestrator-tasks"
)
PLANS = WorkQueue(stream="AGENT_PLANS", subjects=("agent.plans", "agent.plans.>"), consumer="orchestrator-plans")
PRIORITIES = {"high": 8, "normal": 4, "low": 0} | {str(number): number for number in range(MAX_PRIORITY + 1)}
"""What may stand as `<priority>` in `agent.cmd.execute.<tenant>.<priority>`."""
PLANNING_BUCKET = "agent-planning"
"""The bucket that remembers planning events, as long as executions are kept by default."""
PLANNING_KEPT_SECONDS = 90 * 86_400.0
CALLER = "nats"
"""Who tasks from NATS are accounted to."""

_HOPELESS = (InvalidRequest, AlreadyExists)

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_intake(
    log: JetStream,
    executions: Executions,
    planning: PlanningEvents,
    *,
    tasks: WorkQueue = TASKS,
    plans: WorkQueue = PLANS,
    known: Callable[[str], bool] = lambda tenant: tenant == DEFAULT_TENANT,
) -> AsyncGenerator[None]:
    """Take work from NATS until the context ends; what is under way then goes to the other replicas."""
    telemetry = own_telemetry()

    async def execute(work: WorkMessage) -> None:
        with telemetry.receiving("agent.cmd.execute", work.headers):
            await executions.submit(task_of(work, known))

    async def plan(work: WorkMessage) -> None:
        with telemetry.receiving("agent.plans", work.headers):
            event = planning_event(parsed_message(work.data, pb.ProcessPlanningEventRequest()))
            tenant, _ = _tenant(work, "agent.plans", known)
            # Nobody waits here for the subtasks of a dispatched event.
            await planning.process(replace(event, tenant=tenant, caller=""), timeout=0)

    fault = "nothing more is taken from a queue"
    async with (
        in_background(log.consume(tasks, _with_permanent_errors(execute)), name=tasks.consumer, fault=fault),
        in_background(log.consume(plans, _with_permanent_errors(plan)), name=plans.consumer, fault=fault),
    ):
        yield


def task_of(work: WorkMessage, known: Callable[[str], bool] = lambda tenant: tenant == DEFAULT_TENANT) -> Task:
    """The task in a message: the JSON of a SubmitTaskRequest; its subject may name a tenant and give it a priority.

    Raises InvalidRequest, naming the field.
    """
    request = parsed_message(work.data, pb.SubmitTaskRequest())
    tenant, rest = _tenant(work, "agent.cmd.execute", known)
    if len(rest) > 1 or (rest and rest[0] not in PRIORITIES):
        raise not_for_tasks(work.subject)
    chosen = request.WhichOneof("task")
    if chosen and rest and not getattr(request, chosen).priority:
        getattr(request, chosen).priority = PRIORITIES[rest[0]]
    return replace(submitted_task(request), tenant=tenant, caller=CALLER)


def _tenant(work: WorkMessage, prefix: str, known: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The tenant in a message's subject, and what stands behind it. Raises InvalidRequest for one that is not here."""
    tenant, *rest = work.subject.removeprefix(prefix).split(".")[1:] or [DEFAULT_TENANT]
    if not known(tenant):
        raise InvalidRequest(f"there is no tenant {tenant[:64]!r} here", field="subject", hint="see the access file")
    return tenant, rest


def _with_permanent_errors(
    handler: Callable[[WorkMessage], Awaitable[None]],
) -> Callable[[WorkMessage], Awaitable[None]]:
    """The handler, with faults that no repetition can fix told as such."""

    async def handle(work: WorkMessage) -> None:
        try:
            await handler(work)
        except _HOPELESS as fault:
            where = f"{fault.field}: " if fault.field else ""
            raise PermanentError(f"{where}{fault}") from fault

    return handle
