"""The drive of one execution, from its acceptance to its published result.

An orchestration solves the task, as a whole or in subtasks, and delivers the winner; checkpoints of unfinished runs are
deleted at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime

import structlog

from swe_ai_fleet.agents.results import MAX_INLINE_PATCH_BYTES, MAX_OUTPUT_CHARS, MAX_RESULT_BYTES, tool_record
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, RankedCandidate
from swe_ai_fleet.domain.errors import Fenced, FleetError, InvalidRequest, NotFound, Unavailable, innermost
from swe_ai_fleet.domain.event import (
    ApprovalResolved,
    BreakpointsSet,
    CancelRequested,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStatus,
    ResultPublished,
    RunFinished,
    StoredEvent,
    WorkspaceCheckpointed,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.task import Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.approvals import Approvals
from swe_ai_fleet.orchestrator.deliberation import (
    Deliberation,
    PatchJudgement,
    stands,
    without_winner,
)
from swe_ai_fleet.orchestrator.delivery import Delivering
from swe_ai_fleet.orchestrator.execution_context import (
    AgentRuns,
    ChildExecutions,
    Ending,
    ExecutionContext,
    ExecutionDeps,
    HeadSigning,
    KindDrive,
    KindDriver,
)
from swe_ai_fleet.orchestrator.groundwork import background
from swe_ai_fleet.orchestrator.runs import expenses
from swe_ai_fleet.orchestrator.subtasks import SplitTask
from swe_ai_fleet.ports import BlobStore, EventLog, Journal
from swe_ai_fleet.tools.truncation import truncate

_log = structlog.get_logger()
CANCELLED = "cancelled by a caller"
_OF_NODES = ("node_id", "status", "attempt", "execution_id", "error")
"""The fields of workflow nodes in the published result."""
_MOST_DRIVES = 10
"""The most drives of an execution whose dependencies do not answer; after the last one it fails with the reason."""


class RemainingCheckpoints:
    """The remaining checkpoints of an execution's runs, folded from its events."""

    def __init__(self) -> None:
        self.left: dict[str, BlobRef] = {}

    def take(self, stored: StoredEvent) -> None:
        """Fold the next event."""
        body, agent_id = stored.event.body, stored.event.agent_id
        if isinstance(body, RunFinished) and body.stop_reason is not StopReason.CANCELLED:
            self.left.pop(agent_id, None)
        elif isinstance(body, WorkspaceCheckpointed):
            self.left.pop(agent_id, None)
            # A blob named by its digest may belong to another run as well.
            if body.bundle is not None and not body.bundle.name.endswith(f"/{body.bundle.digest}"):
                self.left[agent_id] = body.bundle


class Drive:
    """Drives one execution; the single writer of the execution's own subject.

    Args:
        state: The execution as known here; its log is read again once it is claimed.
        driver: The driver of its kind; None: this drive runs it itself.
    """

    def __init__(
        self, deps: ExecutionDeps, state: ExecutionState, children: ChildExecutions, driver: KindDriver | None = None
    ) -> None:
        self._deps = deps
        self._children = children
        self._driver = driver
        self.task = state.task
        self._generation = state.generation + 1
        self._since = state.started_at
        self._chains, self._checkpoints = AuditChains(), RemainingCheckpoints()
        listeners = (
            (self._checkpoints.take, self._chains.take) if deps.signer is not None else (self._checkpoints.take,)
        )
        self._approvals = Approvals(deps.log, state.task, listeners)
        self._driven: KindDrive | None = None
        self._work: asyncio.Task[Ending] | None = None
        self._cancel_reason = ""

    @property
    def waits(self) -> bool:
        """Whether it only waits for child executions, which take slots of their own."""
        return self.task.derive_subtasks or (self._driven is not None and self._driven.waits)

    def handle(self, body: EventBody) -> None:
        """React to an event that a caller wrote, through any replica."""
        match body:
            case CancelRequested(reason=reason):
                self._cancel(reason)
            case ApprovalResolved(resolution=resolution):
                self._approvals.decided(resolution)
            case BreakpointsSet() if self._driven is not None:
                self._driven.steered()
            case _:
                pass

    async def run(self) -> None:
        """Drive the execution to its end. Cancelling *this* leaves it unfinished in the log, for the next driver."""
        log = _log.bind(execution_id=self.task.execution_id, task_id=self.task.task_id)
        writer = Writer(
            tenant=self.task.tenant,
            execution_id=self.task.execution_id,
            task_id=self.task.task_id,
            generation=self._generation,
            traceparent=self.task.traceparent,
            since=self._since,
        )
        try:
            async with self._deps.log.journal(writer) as journal:
                await journal.append(ExecutionClaimed(generation=self._generation, owner=self._deps.owner))
                # No other driver can write here any more, so this state is complete.
                state = await self._approvals.refresh()
                whole = state.status.terminal or await self._finish(journal, state)
                if not state.result_published:
                    await self._publish(journal)
            if not whole:
                await self._discard_checkpoints()
            await self._deps.workspaces.release(self.task.execution_id)
        except Fenced:
            log.info("another orchestrator drives the execution")
        except FleetError as error:
            log.error("the end of the execution could not be recorded; the execution will be resumed", error=str(error))

    async def state(self) -> ExecutionState:
        """The current state, from the log. Raises Unavailable."""
        return await self._approvals.refresh()

    async def _discard_checkpoints(self) -> None:
        """Delete checkpoints; one that cannot be deleted now expires with the events."""
        try:
            await self._approvals.refresh()
            # Runs that have ended deleted their own.
            for bundle in self._checkpoints.left.values():
                await self._deps.blobs.discard(bundle)
        except FleetError as error:
            _log.warning("checkpoints could not be deleted", reason=str(error))

    def _cancel(self, reason: str) -> None:
        """Stop the agents and end the execution as cancelled, with the first reason given."""
        self._cancel_reason = self._cancel_reason or reason or CANCELLED
        if self._work is not None:
            self._work.cancel()

    async def _finish(self, journal: Journal, state: ExecutionState) -> bool:
        """Drive the execution to its end and record it; returns whether all runs have ended."""
        if state.cancel_requested:
            self._cancel(state.cancel_reason)
        signing = None
        if (signer := self._deps.signer) is not None:
            signing = HeadSigning(
                signer=signer, approvals=self._approvals, chains=self._chains, journal=journal, task=self.task
            )
        ending = await self._ending(journal, state, signing)
        if self._driver is not None:
            await self._driver.ended(self._deps, await self._approvals.refresh(), ending)
        # These are the chains of runs that were lost, cancelled or left behind by an earlier driver.
        if signing is not None:
            await signing.sign()
        age = datetime.now(UTC) - datetime.fromisoformat(state.started_at)
        await journal.append(
            ExecutionFinished(
                status=ending.status,
                winner_id=ending.winner_id,
                error=ending.error,
                usage=ending.usage,
                duration_ms=max(0, round(age.total_seconds() * 1000)),
            )
        )
        return ending.status is ExecutionStatus.COMPLETED

    async def _ending(self, journal: Journal, state: ExecutionState, signing: HeadSigning | None) -> Ending:
        """Run the work in a task of its own, so that cancelling the work does not cancel the driver."""
        if not self._cancel_reason:
            self._work = asyncio.create_task(self._solve(journal, state, signing))
            try:
                await asyncio.wait([self._work])
            except asyncio.CancelledError:
                self._work.cancel()
                await asyncio.wait([self._work])
                raise
            if not self._work.cancelled():
                return self._judged(self._work)
        await self._cancel_children()
        return Ending(status=ExecutionStatus.CANCELLED, error=self._cancel_reason)

    def _judged(self, work: asyncio.Task[Ending]) -> Ending:
        """The end of the work. An internal error fails the execution, and is logged here once.

        Raises Fenced, and Unavailable as long as the execution is to be resumed later.
        """
        fault = work.exception()
        if fault is None:
            return work.result()
        fault = innermost(fault)
        if isinstance(fault, Fenced) or (isinstance(fault, Unavailable) and self._generation < _MOST_DRIVES):
            raise fault
        if isinstance(fault, FleetError):
            return Ending(status=ExecutionStatus.FAILED, error=str(fault))
        _log.error("an execution failed with an internal error", exc_info=fault)
        return Ending(status=ExecutionStatus.FAILED, error=f"internal error ({type(fault).__name__}); see the log")

    async def _cancel_children(self) -> None:
        """Cancel the running child executions."""
        state = await self._approvals.refresh()
        begun, ended = state.subtask_executions, state.subtask_outcomes
        under_way = {execution_id for subtask_id, execution_id in begun.items() if subtask_id not in ended}
        under_way |= {node.execution_id for node in state.nodes.values() if node.execution_id and not node.status.ended}
        async with asyncio.TaskGroup() as group:
            for execution_id in under_way:
                group.create_task(self._cancel_child(execution_id))

    async def _cancel_child(self, execution_id: str) -> None:
        # It was about to be submitted.
        with suppress(NotFound):
            await self._children.cancel(self.task.tenant, execution_id, self._cancel_reason)

    async def _solve(self, journal: Journal, state: ExecutionState, signing: HeadSigning | None) -> Ending:
        runs = AgentRuns(
            fleet=self._deps.fleet,
            journal=journal,
            approvals=self._approvals,
            generation=self._generation,
            known=state,
            signing=signing,
            pauses=self._deps.pauses,
            background="" if self._driver else await background(self._deps.context, self.task, journal, state),
        )
        work = ExecutionContext(deps=self._deps, runs=runs, children=self._children)
        if self._driver is not None:
            self._driven = self._driver.drive(work=work)
            return await self._driven.run()
        if self.task.kind is TaskKind.WORKFLOW:
            raise InvalidRequest("workflows are not available in this fleet", field="workflow")
        delivers, judges = self.task.kind is TaskKind.ORCHESTRATE, self.task.kind is TaskKind.JUDGE
        if delivers and self.task.derive_subtasks:
            return await SplitTask(work=work).run()
        conclusion = await (PatchJudgement(work=work).run() if judges else Deliberation(work=work).run())
        winner = conclusion.winner
        if winner is None:
            if delivers:
                await Delivering(work=work).keep_best(conclusion)
            return without_winner(conclusion)
        if delivers:
            report = state.delivery_report
            report = report or await Delivering(work=work).deliver(winner, conclusion.reports.get(winner.candidate_id))
            if not stands(report):
                error = "the checks passed on the candidate but failed on the delivered branch"
                return Ending(status=ExecutionStatus.FAILED, error=error, usage=conclusion.usage)
        return Ending(status=ExecutionStatus.COMPLETED, winner_id=winner.candidate_id, usage=conclusion.usage)

    async def _publish(self, journal: Journal) -> None:
        await self._deps.results.publish(
            tenant=self.task.tenant,
            task_id=self.task.task_id,
            execution_id=self.task.execution_id,
            agent_id="",
            payload=await execution_result(self._deps.log, self._deps.blobs, await self._approvals.refresh()),
        )
        await journal.append(ResultPublished())


async def execution_result(log: EventLog, blobs: BlobStore, state: ExecutionState) -> bytes:
    """The final result of an execution as JSON of at most 512 KiB; values that are too long are references."""
    task = state.task
    winner = state.candidates.get(state.winner_id)
    # The winner's agent, or all agents if nobody won.
    record = await tool_record(log, task.tenant, task.execution_id, winner.agent_id if winner else "")
    best = state.best_report
    agents = [winner.agent_id] if winner else list(record.entries)
    payload: dict[str, object] = {
        "kind": "execution",
        "event_id": f"{state.execution_id}/result",
        "task_id": task.task_id,
        "execution_id": state.execution_id,
        "agent_id": winner.agent_id if winner else "",
        "status": str(state.status),
        "success": state.status is ExecutionStatus.COMPLETED,
        "operations": [operation for agent_id in agents for operation in record.operations[agent_id]],
        "artifacts": await _artifacts(state, winner, blobs),
        "audit_trail": [to_plain(entry) for agent_id in agents for entry in record.entries[agent_id]],
        "audit_head": state.audit_head,
        "audit_heads": {agent.agent_id: agent.audit_head for agent in state.agents.values() if agent.audit_head},
        "audit_signatures": [to_plain(head) for head in state.signed_heads.values()],
        "winner": state.winner_id,
        "verdict": best.verdict if best else None,
        "verdict_reasons": list(best.reasons) if best else [],
        "baseline": to_plain(state.baseline) if state.baseline else None,
        "examination": to_plain(state.examination) if state.examination else None,
        "candidates": [_candidate(state, ranked) for ranked in state.ranking],
        "subtasks": [to_plain(outcome) for outcome in state.subtask_outcomes.values()],
        "outputs": _outputs(state),
        "nodes": [{name: getattr(node, name) for name in _OF_NODES} for node in state.nodes.values()],
        "usage": asdict(state.usage),
        "expenses": [to_plain(expense) for expense in expenses(state)],
        "error": state.error or None,
        "duration_ms": state.duration_ms,
        "timestamp": state.finished_at,
    }
    return await _bounded(payload, task, blobs)


async def _artifacts(state: ExecutionState, winner: Candidate | None, blobs: BlobStore) -> dict[str, object]:
    artifacts, delivered = winner.artifacts if winner else Artifacts(), state.delivered
    patch: object = ""
    # The result of subtasks is no candidate.
    if (ref := artifacts.patch or (delivered.patch if delivered else None)) is not None:
        inline = ref.size <= MAX_INLINE_PATCH_BYTES
        patch = (await blobs.get(ref)).decode("utf-8", "replace") if inline else to_plain(ref)
    branch, report = delivered or state.integration, state.best_report
    tests = artifacts.tests or (report.tests if report else None)
    return {
        "commit_sha": delivered.commit_sha if delivered else artifacts.commit_sha,
        "branch": delivered.branch if delivered else artifacts.branch,
        "patch": patch,
        "files_changed": list(artifacts.files_changed),
        "tests": to_plain(tests) if tests else None,
        "bundle": to_plain(branch.bundle) if branch and branch.bundle else None,
    }


def _candidate(state: ExecutionState, ranked: RankedCandidate) -> dict[str, object]:
    """A ranked candidate with its checks and critiques; its patch is a reference."""
    name = ranked.candidate_id
    patch, report = state.candidates[name].artifacts.patch, state.reports.get(name)
    checks = report.results if report else ()
    return {
        **mapping(to_plain(ranked)),
        "patch": to_plain(patch) if patch else None,
        "checks": [to_plain(replace(check, output=truncate(check.output, MAX_OUTPUT_CHARS))) for check in checks],
        "critiques": [to_plain(critique) for critique in state.critiques if critique.candidate_id == name],
    }


def _outputs(state: ExecutionState) -> object:
    """The output of a workflow, or a reference to it; None without one."""
    if state.output is None:
        return None
    return to_plain(state.output.output_blob) if state.output.output_blob else json.loads(state.output.output or "null")


async def _bounded(payload: Mapping[str, object], task: Task, blobs: BlobStore) -> bytes:
    """The payload as JSON, its longest lists moved to the blob store one by one until it fits."""
    parts = {name: json.dumps(value).encode() for name, value in payload.items()}
    for name in ("audit_trail", "operations", "artifacts", "outputs", "nodes", "candidates"):
        if len(data := _object(parts)) <= MAX_RESULT_BYTES:
            return data
        ref = await blobs.put(task.tenant, task.execution_id, parts[name], "application/json")
        parts[name] = json.dumps(to_plain(ref)).encode()
    return _object(parts)


def _object(members: Mapping[str, bytes]) -> bytes:
    return b"{%s}" % b", ".join(b'"%s": %s' % (name.encode(), member) for name, member in members.items())
