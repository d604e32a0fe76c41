"""Approval requests: they go into the log, with all that a person needs to decide, or to a callable.

A proposal that a model wrote as text becomes a call of `propose_approach`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from swe_ai_fleet.agents.approval_gate import Approver
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.agents.plan_session.proposals import opens_with_proposal
from swe_ai_fleet.agents.run_memory import findings
from swe_ai_fleet.agents.spec import RunContext
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import ApprovalRequested, ApprovalResolved
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ModelRequest, ToolCall, ToolMessage
from swe_ai_fleet.domain.run import APPROVAL_TOOL
from swe_ai_fleet.domain.tool import Decision, OperationSpec, ToolResult
from swe_ai_fleet.ports import ChatModel, Clone
from swe_ai_fleet.tools.builtin.dialogue import PROPOSE
from swe_ai_fleet.tools.truncation import beginning

MEMORY_TOOLS = frozenset({"search_memory", "research"})
MAX_MEMORY_CHARS = 16_000
MAX_DIFF_CHARS = 32_000
REPAIR = f"text taken as a call of {PROPOSE}"


@dataclass(kw_only=True)
class RunApprovalService:
    """The `ApprovalService` of one run.

    A request shows people what the agent means to do, what it has found and what it has changed so far.

    Args:
        run: The run.
        clone: Where the agent works.
        history: What it has found.
        spent: What it has spent so far.
        approver: Decides at once in this process; None: the log is asked, and the run waits.
        timeout_seconds: How long people have; 0: for ever.
        searched: What searching memory gave so far.
    """

    run: RunContext
    clone: Clone
    history: History
    spent: Callable[[], Usage]
    approver: Approver | None = None
    timeout_seconds: float = 0.0
    searched: Sequence[MemoryResults] = ()

    def __post_init__(self) -> None:
        self._mask, self._trail, self._journal = self.run.equipment.mask, self.run.trail, self.run.journal
        self._known = set(self.run.earlier.requests)

    async def ask(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, ApprovalResolution]:
        """See `ApprovalService`. Raises FleetError where workspace or request cannot be kept."""
        new = [request for request in requests if request.approval_id not in self._known]
        if not new:
            return {}
        diff, whole = await self._diff()
        memory, searches = self._memory(), findings(self.searched, self._mask)
        now = datetime.now(UTC)
        expires = (now + timedelta(seconds=self.timeout_seconds)).isoformat() if self.timeout_seconds else ""
        filled = [
            replace(
                request,
                requested_at=now.isoformat(),
                expires_at=expires,
                memory=memory,
                memory_results=searches,
                diff=diff,
                diff_ref=whole,
            )
            for request in new
        ]
        if self.approver is not None:
            return {request.approval_id: await self._decide(self.approver, request) for request in filled}
        if self.run.keeper is not None:
            # The workspace must last beyond the run, which ends with the request.
            await self.run.keeper.keep(new[0].step)
        if self._journal is not None:
            for request in filled:
                self._journal.post(ApprovalRequested(request=request, usage=self.spent()))
            await self._journal.flush()
        self._known.update(request.approval_id for request in filled)
        return {}

    def record_decision(self, request: ApprovalRequest, resolution: ApprovalResolution) -> None:
        """See `ApprovalService`."""
        if any(entry.tool == APPROVAL_TOOL and entry.call_id == request.approval_id for entry in self._trail.entries):
            return
        word = str(resolution.decision)
        spec = OperationSpec(
            name=f"{APPROVAL_TOOL}_{word}", tool=APPROVAL_TOOL, operation=word, description="", parameters={}
        )
        arguments: dict[str, object] = {
            "call_id": request.call.call_id,
            "operation": request.call.name,
            "approver": self._mask(resolution.approver),
            "caller": self._mask(resolution.caller),
            "decided_at": resolution.at,
            "text": self._mask(resolution.text),
        }
        record = self._trail.open(spec, arguments=arguments, secret=arguments, call_id=request.approval_id)
        result = ToolResult(success=True, operation=spec.name, content=self._mask(resolution.text))
        approved = resolution.decision is ApprovalDecision.APPROVED
        reason = f"{word} by {self._mask(resolution.approver) or 'a person'}"
        record.close(result, Decision.ALLOWED if approved else Decision.REFUSED, reason)

    async def _decide(self, approver: Approver, request: ApprovalRequest) -> ApprovalResolution:
        if self._journal is not None:
            await self._journal.append(ApprovalRequested(request=request, usage=self.spent()))
        given = await approver(request)
        resolution = replace(given, approval_id=request.approval_id, at=given.at or datetime.now(UTC).isoformat())
        if self._journal is not None:
            self._journal.post(ApprovalResolved(resolution=resolution))
        return resolution

    async def _diff(self) -> tuple[str, BlobRef | None]:
        """The changes so far as text, and where the whole of them is kept if that text was cut."""
        try:
            patch = (await self.clone.diff()).patch
        except FleetError as fault:
            return self._mask(f"[the changes cannot be shown: {fault.message}]"), None
        text = self._mask(patch.decode("utf-8", "replace"))
        if len(text) <= MAX_DIFF_CHARS:
            return text, None
        whole = await self.run.store(text.encode()) if self.run.store is not None else None
        return beginning(text, MAX_DIFF_CHARS), whole

    def _memory(self) -> str:
        """What searching in memory, and research, gave so far."""
        asked: set[str] = set()
        memories: list[str] = []
        for message in self.history.messages:
            if isinstance(message, AssistantMessage):
                asked.update(call.call_id for call in message.tool_calls if call.name in MEMORY_TOOLS)
            elif isinstance(message, ToolMessage) and message.call_id in asked:
                memories.append(message.content)
        return beginning(self._mask("\n\n".join(memories)), MAX_MEMORY_CHARS)


@dataclass(frozen=True, kw_only=True)
class ProposingModel(ModelWrapper):
    """A `ChatModel` whose replies that call nothing and open with a proposal become a call of `propose_approach`.

    Args:
        model: Who replies.
        wanted: Whether a proposal is waited for; otherwise replies stay as they are.
    """

    model: ChatModel
    wanted: Callable[[], bool]

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The model's reply. Raises as it does."""
        reply = await self.model.reply(request)
        text = reply.message.content
        offered = any(spec.name == PROPOSE for spec in request.tools)
        whole = reply.finish_reason in ("stop", "tool_calls")
        if reply.message.tool_calls or not (offered and whole and self.wanted() and opens_with_proposal(text)):
            return reply
        call_id = uuid.uuid4().hex[:12]
        arguments = json.dumps({"approach": text, "reasoning": ""})
        call = ToolCall(call_id=call_id, model_call_id=call_id, name=PROPOSE, arguments=arguments)
        return replace(
            reply,
            message=replace(reply.message, content="", tool_calls=(call,)),
            finish_reason="tool_calls",
            repairs=(*reply.repairs, REPAIR),
        )
