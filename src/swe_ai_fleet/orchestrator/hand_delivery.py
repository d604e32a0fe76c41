"""Candidates delivered by a person's decision, after the end of their execution and whatever the evidence says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from swe_ai_fleet.domain.candidate import CheckReport, Delivered
from swe_ai_fleet.domain.errors import NotFound, PermissionDenied, PreconditionFailed
from swe_ai_fleet.domain.event import CandidateDelivered
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import Delivery, TaskKind, check_branch
from swe_ai_fleet.domain.verdict import Verdict
from swe_ai_fleet.orchestrator.approvals import control
from swe_ai_fleet.orchestrator.commits import commit_message
from swe_ai_fleet.ports import BlobStore, EventLog, Repositories

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandDelivery:
    """What a person asks for. Without a `branch` it is `fleet/<task>-<candidate>`.

    `by` is who has it done, in words; `caller` is who authenticated, empty where callers cannot be told apart.
    """

    candidate_id: str
    by: str
    caller: str = ""
    reason: str = ""
    branch: str = ""
    push: bool = False


@dataclass(frozen=True, kw_only=True)
class HandDeliveries:
    """Delivers candidates of ended executions; who had it done stands in the log and in the commit.

    Attributes:
        log: Where it stands.
        blobs: Has the patches.
        workspaces: Delivers.
        get: An execution as its events tell it now. Raises NotFound.
    """

    log: EventLog
    blobs: BlobStore
    workspaces: Repositories
    get: Callable[[str, str], Awaitable[ExecutionState]]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def deliver(self, tenant: str, execution_id: str, asked: HandDelivery) -> Delivered:
        """Put a candidate on a branch. The same again changes nothing.

        Raises NotFound (no such candidate), PreconditionFailed (it has not ended, the candidate changed nothing, the
        branch is taken), PermissionDenied (they handed the task in, and only what evidence verifies may win),
        PatchRejected, Unavailable.
        """
        async with self._turn:
            state = await self.get(tenant, execution_id)
            candidate = state.candidates.get(asked.candidate_id)
            if candidate is None:
                known = ", ".join(sorted(state.candidates)) or "none"
                raise NotFound(
                    f"the execution has no candidate {asked.candidate_id[:64]!r}",
                    field="candidate_id",
                    hint=f"one of: {known}",
                )
            if not state.status.terminal:
                raise PreconditionFailed("the execution has not ended", field="execution_id", hint="wait for its end")
            if candidate.artifacts.patch is None or not candidate.artifacts.patch.size:
                raise PreconditionFailed("the candidate changes nothing", field="candidate_id")
            delivery = self._delivery(state, asked)
            report = state.reports.get(asked.candidate_id)
            _check_overruling(state, report, asked)
            trailer = f"Fleet-Delivered-By: {asked.by}"
            message = commit_message(state.task, candidate, report).rstrip()
            delivered = await self.workspaces.deliver(
                state.execution_id,
                state.repository,
                await self.blobs.get(candidate.artifacts.patch),
                replace(delivery, message=f"{message}\n{trailer}\n"),
            )
            done = CandidateDelivered(
                candidate_id=asked.candidate_id, delivered=delivered, by=asked.by, reason=asked.reason
            )
            if not any(known.delivered == delivered for known in state.hand_deliveries):
                await self.log.tell(control(state.task), done)
            return delivered

    def _delivery(self, state: ExecutionState, asked: HandDelivery) -> Delivery:
        given = state.task.delivery if state.task.kind is TaskKind.ORCHESTRATE else Delivery()
        branch = asked.branch or f"fleet/{state.task.task_id}-{asked.candidate_id}"
        check_branch(branch, field="branch")
        return replace(given, branch=branch, push=asked.push, message="")


def _check_overruling(state: ExecutionState, report: CheckReport | None, asked: HandDelivery) -> None:
    """Refuse that whoever handed a task in has delivered what its evidence refused. Raises PermissionDenied."""
    verified = report is not None and report.verdict is Verdict.VERIFIED
    if verified or not state.task.constraints.require_verified or asked.caller != (state.task.caller or None):
        return
    _log.warning(
        "delivery.refused",
        tenant=state.task.tenant,
        execution_id=state.execution_id,
        candidate_id=asked.candidate_id,
        caller=asked.caller,
    )
    raise PermissionDenied(
        "who handed a task in does not overrule its evidence", field="candidate_id", hint="ask somebody else"
    )
