"""Runs tasks from `agent.cmd.execute` without an orchestrator: one agent, one result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from structlog.contextvars import bound_contextvars

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.errors import NotAvailable, parsed_message
from services.orchestrator.requests import not_for_tasks, submitted_task
from swe_ai_fleet.adapters.jetstream import JetStream, PermanentError, WorkMessage, WorkQueue
from swe_ai_fleet.adapters.jetstream.protocol import COMMANDS
from swe_ai_fleet.agents.results import agent_result, failed_result, tool_record
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.assignment import CheckAssignment, CodingAssignment
from swe_ai_fleet.domain.candidate import Candidate, CheckReport
from swe_ai_fleet.domain.errors import AgentLost, FleetError, InvalidRequest, Unavailable
from swe_ai_fleet.domain.job import JobOutcome, JobPriority
from swe_ai_fleet.domain.task import DEFAULT_TENANT, MAX_PRIORITY, ApprovalPolicy, PinnedRepository, Task
from swe_ai_fleet.domain.text import check_identifier
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.kubernetes_jobs.fleet import job_of
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.orchestrator.evidence.check_results import no_evidence
from workers.workspace_runner.runner import RANKS, Runner

AGENT_ID = "agent-1"
PAUSES = (0.0, 1.0, 4.0, 15.0)
"""Seconds before each further container for a run whose container was lost."""
_PRIORITIES = {"high": 8, "normal": 4, "low": 0} | {str(number): number for number in range(MAX_PRIORITY + 1)}
_log = structlog.get_logger(__name__)


def task_queue(settings: RunnerSettings) -> WorkQueue:
    """The queue of tasks; an orchestrator consumes the same subjects, so it must not run on the same NATS."""
    return WorkQueue(
        stream=COMMANDS,
        subjects=("agent.cmd.execute", "agent.cmd.execute.>"),
        consumer="workspace-runner-tasks",
        max_deliveries=settings.max_deliveries,
        ack_wait_seconds=settings.ack_wait_seconds,
        concurrency=settings.concurrency,
    )


@dataclass(frozen=True, kw_only=True)
class TaskRunner:
    """Runs one agent for a task, in several containers if some are lost, and checks its candidate in another one.

    The result is published on `agent.results.<task_id>`, once.

    Args:
        runner: Runs the jobs.
        log: The log with the agent's events; publishes results.
        pauses: Seconds before each further container.
    """

    runner: Runner
    log: JetStream
    pauses: Sequence[float] = PAUSES

    async def handle(self, work: WorkMessage) -> None:
        """Handle a message with the JSON of a SubmitTaskRequest. Raises PermanentError for an unsupported task."""
        try:
            task = read_task(work)
        except (InvalidRequest, NotAvailable) as fault:
            where = f"{fault.field}: " if fault.field else ""
            raise PermanentError(f"{where}{fault}") from fault
        with bound_contextvars(tenant=task.tenant, execution_id=task.execution_id, task_id=task.task_id):
            await self._handle(task)

    async def _handle(self, task: Task) -> None:
        outcome, last = await self._solve(task)
        try:
            candidate = from_json(Candidate, await self.runner.board.value(outcome))
        except FleetError as fault:
            if isinstance(fault, Unavailable) and not outcome.fault:
                raise
            await self._publish(task, failure(task, outcome))
            return
        _log.info("task.solved", containers=last)
        await self._publish(task, await self._result(task, candidate, await self._check(task, candidate)))

    async def _check(self, task: Task, candidate: Candidate) -> CheckReport | None:
        """The check report of a candidate; None without an answer, or without a change or check.

        Raises Unavailable where the board does not answer.
        """
        answered, patch = candidate.stop_reason is StopReason.FINAL_ANSWER, candidate.artifacts.patch
        pinned = await self.runner.board.pinned(job_of(_coding(task, 1)))
        if pinned is None or not answered or not (patch or task.constraints.checks):
            return None
        job = job_of(
            CheckAssignment(
                execution_id=task.execution_id,
                candidate_id=candidate.candidate_id,
                task=task,
                repository=pinned,
                patch=patch,
            ),
            agent_id=AGENT_ID,
        )
        outcome = await self.runner.board.outcome(job.tenant, job.job_id)
        outcome = outcome or await self.runner.run_job(job, RANKS.index(JobPriority.of(task.priority)))
        try:
            return from_json(CheckReport, await self.runner.board.value(outcome))
        except FleetError as error:
            if not outcome.fault:
                raise
            return no_evidence(candidate.candidate_id, error)

    async def _solve(self, task: Task) -> tuple[JobOutcome, int]:
        """The final outcome of the run, and its generation. Each container is a separate job with its own name."""
        rank = RANKS.index(JobPriority.of(task.priority))
        for generation in range(1, len(self.pauses) + 2):
            job = job_of(_coding(task, generation))
            outcome = await self.runner.board.outcome(job.tenant, job.job_id)
            if outcome is None:
                # A later container continues from this one's events and commit.
                outcome = await self.runner.run_job(job, rank)
            if outcome.fault not in (AgentLost.__name__, Unavailable.__name__) or generation > len(self.pauses):
                return outcome, generation
            _log.warning("task.container_lost", generation=generation, reason=outcome.message)
            await asyncio.sleep(self.pauses[generation - 1])
        raise AssertionError("the last generation is always the end")

    async def _result(self, task: Task, candidate: Candidate, report: CheckReport | None) -> bytes:
        """The result message of a run that ended."""
        record = await tool_record(self.log, task.tenant, task.execution_id, AGENT_ID)
        patch = await self.log.get(candidate.artifacts.patch) if candidate.artifacts.patch else b""
        return agent_result(candidate, task, record, patch, report)

    async def _publish(self, task: Task, payload: bytes) -> None:
        await self.log.publish(
            tenant=task.tenant, task_id=task.task_id, execution_id=task.execution_id, agent_id="", payload=payload
        )


def read_task(work: WorkMessage) -> Task:
    """The task in a message, for one agent. Raises InvalidRequest and NotAvailable, naming the field."""
    rest = work.subject.removeprefix("agent.cmd.execute").split(".")[1:]
    if len(rest) > 2 or (len(rest) > 1 and rest[1] not in _PRIORITIES):
        raise not_for_tasks(work.subject)
    message = parsed_message(work.data, pb.SubmitTaskRequest())
    task = submitted_task(message)
    if message.HasField("orchestrate"):
        raise InvalidRequest(
            "only an orchestrator delivers",
            field="orchestrate.delivery",
            hint="run one, or submit the task as `deliberate`: its result has the patch",
        )
    for name in ("num_agents", "max_agents", "rounds"):
        if (number := getattr(message.deliberate, name)) > (name != "rounds"):
            raise InvalidRequest(
                f"{number}, but one agent works here and nobody reviews",
                field=f"deliberate.{name}",
                hint="leave it out",
            )
    tenant = check_identifier(rest[0], field="subject") if rest else DEFAULT_TENANT
    priority = task.priority or (_PRIORITIES[rest[1]] if len(rest) > 1 else 0)
    task = replace(task, tenant=tenant, priority=priority, num_agents=1, rounds=0, caller="nats").validated(
        max_agents=1
    )
    if task.approval is not ApprovalPolicy.NONE:
        raise InvalidRequest(
            "nobody can approve anything without an orchestrator", field="approval", hint="run one, or ask for none"
        )
    return task


def _coding(task: Task, generation: int) -> CodingAssignment:
    """The agent's assignment, without a commit: the first container resolves it."""
    repository = PinnedRepository(
        tenant=task.tenant,
        location=task.repo.location,
        commit="",
        subdirectory=task.repo.subdirectory,
        credential=task.repo.credential,
    )
    return CodingAssignment(
        execution_id=task.execution_id,
        agent_id=AGENT_ID,
        task=task,
        repository=repository,
        generation=generation,
        resume=generation > 1,
    )


def failure(task: Task, outcome: JobOutcome) -> bytes:
    """The result message of a failed run, in the format of every result."""
    error = f"{outcome.message} ({outcome.hint})" if outcome.hint else outcome.message
    problem = f"{outcome.reason or outcome.fault}: {error}"
    return json.dumps(failed_result(task.task_id, task.execution_id, AGENT_ID, problem)).encode()
