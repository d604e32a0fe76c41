"""Approvals: which calls of a reply wait for a person, what the request contains, and the effect of a decision."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.agents.run_deps import RunContext
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, findings
from swe_ai_fleet.agents.toolbox import CallVerdict, ReadCall, Ruling
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import ApprovalRequested, ApprovalResolved
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ModelRequest, ToolCall, ToolMessage
from swe_ai_fleet.domain.run import APPROVAL_TOOL, RunState
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.domain.tool import OperationSpec, PolicyDecision, ToolResult
from swe_ai_fleet.ports import ChatModel, Clone, SecretMask
from swe_ai_fleet.tools.builtin import PROPOSE
from swe_ai_fleet.tools.policy import risks
from swe_ai_fleet.tools.truncation import beginning

MAX_APPROACH_CHARS = 16_000
PROPOSE_FIRST = (
    f"propose first: call {PROPOSE} with what you mean to do, step by step, and do nothing that changes anything "
    "before it is approved. Reading and searching is allowed."
)
PUT_AWAY = "(While you waited, your workspace was put away and brought back: files that git ignores are gone.)"
NOBODY = "this needs a person's approval, and nobody can be asked here. Do without it, or say what you would need."
Approver = Callable[[ApprovalRequest], Awaitable[ApprovalResolution]]
"""Decides a request in this process; for callers of the library."""
MEMORY_TOOLS = frozenset({"search_memory", "research"})
MAX_MEMORY_CHARS = 16_000
MAX_DIFF_CHARS = 32_000
_OPENINGS = (
    "i propose", "i suggest", "i recommend", "i would", "i'd", "i will", "i'll", "i plan", "proposal", "proposed",
    "approach", "recommended approach", "my approach", "my plan", "my proposal", "my suggestion", "our approach",
    "plan:", "plan for", "plan of", "the plan", "the approach", "suggested approach", "here is my", "here is the",
    "here is a plan", "here's my", "here's the", "here's a plan", "here is how", "here's how", "to do this, i",
    "step 1", "1.", "1)",
)  # fmt: skip
REPAIR = f"text taken as a call of {PROPOSE}"


class PolicyGate:
    """The `ApprovalGate` of a task's approval policy.

    With `plan`, no call with a side effect is run before a call of `propose_approach` in an earlier reply was approved;
    with `risky`, each call in which `tools.policy.risks` finds a risk waits; with `every`, each call that is not
    read-only. A call that means no known operation passes: the toolbox refuses it.
    """

    def __init__(
        self,
        policy: ApprovalPolicy,
        *,
        agent_id: str,
        goal: str,
        read: Callable[[ToolCall, bool], ReadCall | None],
        approvals: RunApprovalService | None,
        mask: SecretMask,
        earlier: RunState,
    ) -> None:
        self.policy, self._agent_id, self._goal = policy, agent_id, goal
        self._read, self._approvals, self._mask = read, approvals, mask
        self._requests, self._resolutions, plans = dict(earlier.requests), dict(earlier.resolutions), _approved(earlier)
        # Only once the model has the result of its proposal, too.
        self._planned = any(earlier.observed(request.call.call_id) for request in plans)
        self._put_away = frozenset(self._requests)
        self.approved = plans[-1].approach if plans else ""
        """The approved plan; empty before."""
        self.rejection = ""
        """Why the run ends, once a plan is rejected."""

    @property
    def wants_proposal(self) -> bool:
        """Whether the policy requires an approved plan and there is none yet."""
        return self.policy is ApprovalPolicy.PLAN and not self._planned

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        readings = {call.call_id: self._read(call, truncated) for call in calls}
        needs = {call.call_id: self._need(call, readings[call.call_id], step) for call in calls}
        requests = [need for need in needs.values() if isinstance(need, ApprovalRequest)]
        if unknown := [request for request in requests if request.approval_id not in self._resolutions]:
            if self._approvals is None:
                return [
                    Ruling(verdict=CallVerdict.REFUSE, text=need if isinstance(need, str) else NOBODY)
                    if need
                    else Ruling()
                    for need in (needs[call.call_id] for call in calls)
                ]
            self._resolutions.update(await self._approvals.ask(unknown))
        if any(request.approval_id not in self._resolutions for request in requests):
            return [
                Ruling(verdict=CallVerdict.WAIT if isinstance(needs[call.call_id], ApprovalRequest) else CallVerdict.GO)
                for call in calls
            ]
        return [self._ruling(needs[call.call_id]) for call in calls]

    def _need(self, call: ToolCall, reading: ReadCall | None, step: int) -> ApprovalRequest | str | None:
        """The approval that a call needs, the reason for which it is refused (a text), or None if it may run."""
        if reading is None:
            return None
        spec = reading.spec
        if self.policy is ApprovalPolicy.PLAN:
            if spec.name == PROPOSE:
                empty = not str(reading.arguments.get("approach", "")).strip()
                return None if self._planned or empty else self._request(call, reading, step)
            return PROPOSE_FIRST if _changes(spec) and not self._planned else None
        if self.policy is ApprovalPolicy.RISKY:
            reasons = risks(spec, reading.arguments)
            return self._request(call, reading, step, reasons) if reasons else None
        if self.policy is ApprovalPolicy.EVERY and _changes(spec):
            return self._request(call, reading, step, risks(spec, reading.arguments))
        return None

    def _request(self, call: ToolCall, reading: ReadCall, step: int, reasons: tuple[str, ...] = ()) -> ApprovalRequest:
        approval_id = f"{self._agent_id}.{call.call_id}"
        if earlier := self._requests.get(approval_id):
            return earlier
        arguments = self._mask(call.arguments)[:MAX_APPROACH_CHARS]
        request = ApprovalRequest(
            approval_id=approval_id,
            agent_id=self._agent_id,
            policy=self.policy,
            goal=self._mask(self._goal)[:MAX_APPROACH_CHARS],
            approach=self._mask(_approach(reading))[:MAX_APPROACH_CHARS],
            call=replace(call, name=reading.spec.name, arguments=arguments),
            step=step,
            requested_at="",
            reasons=tuple(self._mask(reason) for reason in reasons),
        )
        self._requests[approval_id] = request
        return request

    def _ruling(self, need: ApprovalRequest | str | None) -> Ruling:
        if need is None:
            return Ruling()
        if isinstance(need, str):
            return Ruling(verdict=CallVerdict.REFUSE, text=need)
        resolution = self._resolutions[need.approval_id]
        if self._approvals is not None:
            self._approvals.record_decision(need, resolution)
        approver = resolution.approver or "a person"
        comment = f": {resolution.text.strip()}" if resolution.text.strip() else ""
        plan = self.policy is ApprovalPolicy.PLAN
        away = f"\n{PUT_AWAY}" if need.approval_id in self._put_away else ""
        match resolution.decision:
            case ApprovalDecision.APPROVED:
                self._planned = self._planned or plan
                self.approved = need.approach if plan else self.approved
                return Ruling(text=f"Approved by {approver}{comment or '.'}{away}")
            case ApprovalDecision.ADJUSTED:
                again = f"Call {PROPOSE} again, with that taken into account." if plan else "Take that into account."
                return Ruling(verdict=CallVerdict.REFUSE, text=f"{approver} asks for a change{comment}\n{again}{away}")
            case ApprovalDecision.REJECTED if plan:
                self.rejection = f"the approach was rejected by {approver}{comment}"
                return Ruling(verdict=CallVerdict.END, text=self.rejection)
            case ApprovalDecision.REJECTED:
                text = f"not carried out: {approver} rejected this call{comment}\nGo on without it.{away}"
                return Ruling(verdict=CallVerdict.REFUSE, text=text)


def _changes(spec: OperationSpec) -> bool:
    """Whether an operation has a side effect, or runs code that may have one."""
    return not spec.read_only or spec.executes


def _approved(earlier: RunState) -> list[ApprovalRequest]:
    return [
        request
        for name, request in earlier.requests.items()
        if request.policy is ApprovalPolicy.PLAN
        and name in earlier.resolutions
        and earlier.resolutions[name].decision is ApprovalDecision.APPROVED
    ]


def _approach(reading: ReadCall) -> str:
    if reading.spec.name == PROPOSE:
        parts = (str(reading.arguments.get("approach", "")), str(reading.arguments.get("reasoning", "")))
        return "\n\n".join(part.strip() for part in parts if part.strip())
    arguments = "\n".join(f"{name}: {value}" for name, value in reading.arguments.items() if value is not None)
    return f"{reading.spec.name}\n{arguments}" if arguments else reading.spec.name


@dataclass(kw_only=True)
class RunApprovalService:
    """Asks people for approval in one run, with the agent's intention, its memory searches and its changes so far.

    Without an `approver` in this process, the request goes to the log and the run waits; with `timeout_seconds` 0, for
    ever.
    """

    run: RunContext
    clone: Clone
    history: History
    spent: Callable[[], Usage]
    approver: Approver | None = None
    timeout_seconds: float = 0.0
    searched: Sequence[MemoryResults] = ()

    def __post_init__(self) -> None:
        self._mask, self._trail, self._journal = self.run.deps.mask, self.run.trail, self.run.journal
        self._requested = set(self.run.earlier.requests)

    async def ask(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, ApprovalResolution]:
        """Ask for approval. The approver's decisions, by approval id; other requests are durable when this returns.

        Raises FleetError if workspace or request cannot be stored.
        """
        new = [request for request in requests if request.approval_id not in self._requested]
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
            # The run ends with the request; its workspace must last longer.
            await self.run.keeper.keep(new[0].step)
        if self._journal is not None:
            for request in filled:
                self._journal.post(ApprovalRequested(request=request, usage=self.spent()))
            await self._journal.flush()
        self._requested.update(request.approval_id for request in filled)
        return {}

    def record_decision(self, request: ApprovalRequest, resolution: ApprovalResolution) -> None:
        """Record a decision in the agent's audit chain when it takes effect, once."""
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
        record.close(result, PolicyDecision.ALLOWED if approved else PolicyDecision.REFUSED, reason)

    async def _decide(self, approver: Approver, request: ApprovalRequest) -> ApprovalResolution:
        if self._journal is not None:
            await self._journal.append(ApprovalRequested(request=request, usage=self.spent()))
        decision = await approver(request)
        resolution = replace(decision, approval_id=request.approval_id, at=decision.at or datetime.now(UTC).isoformat())
        if self._journal is not None:
            self._journal.post(ApprovalResolved(resolution=resolution))
        return resolution

    async def _diff(self) -> tuple[str, BlobRef | None]:
        """The changes so far as text, and a blob with all of them if the text is cut."""
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
        memory_calls: set[str] = set()
        memories: list[str] = []
        for message in self.history.messages:
            if isinstance(message, AssistantMessage):
                memory_calls.update(call.call_id for call in message.tool_calls if call.name in MEMORY_TOOLS)
            elif isinstance(message, ToolMessage) and message.call_id in memory_calls:
                memories.append(message.content)
        return beginning(self._mask("\n\n".join(memories)), MAX_MEMORY_CHARS)


@dataclass(frozen=True, kw_only=True)
class ProposingModel(ModelWrapper):
    """A `ChatModel` that turns replies without calls that open with a proposal into calls of `propose_approach`, while
    a proposal is `wanted`."""

    model: ChatModel
    wanted: Callable[[], bool]

    async def reply(self, request: ModelRequest) -> ModelReply:
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


def opens_with_proposal(text: str) -> bool:
    """Whether a text opens like a proposal, apart from marks of headings and emphasis, and is not a question."""
    if text.rstrip().endswith("?"):
        return False
    start = " ".join(text[:400].lstrip(" \t\r\n#*_>-`").lower().replace("\u2019", "'").split())
    return start.replace("*", "").startswith(_OPENINGS)
