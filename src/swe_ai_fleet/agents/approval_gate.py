"""The approval gate: which calls of a reply wait for a person, and a preview of a call before it is carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from swe_ai_fleet.agents.toolbox import Reading
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.builtin.dialogue import PROPOSE
from swe_ai_fleet.tools.policy import risks

MAX_APPROACH_CHARS = 16_000
PROPOSE_FIRST = (
    f"propose first: call {PROPOSE} with what you mean to do, step by step, and do nothing that changes anything "
    "before it is approved. Reading and searching is allowed."
)
PUT_AWAY = "(While you waited, your workspace was put away and brought back: files that git ignores are gone.)"
NOBODY = "this needs a person's approval, and nobody can be asked here. Do without it, or say what you would need."
Approver = Callable[[ApprovalRequest], Awaitable[ApprovalResolution]]
"""Decides in this process, at once; for callers of the library."""


class Verdict(StrEnum):
    """Carry it out; tell the model why not; wait for a person; end the run."""

    GO = "go"
    REFUSE = "refuse"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What happens to one call. `text` is for the model where it is refused, and goes before the result otherwise."""

    verdict: Verdict = Verdict.GO
    text: str = ""


class ApprovalGate(Protocol):
    """Decides about the calls of a reply before any of them is carried out."""

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        """One ruling a call. Where one must wait, that it is asked for is durable in the log when this returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """The rulings on a reply, by call id: why a call is refused, and what goes before a result."""

    refusals: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, str] = field(default_factory=dict[str, str])
    waits: bool = False
    ends: bool = False


async def ruled_on(calls: Sequence[ToolCall], gate: ApprovalGate | None, *, step: int, truncated: bool) -> Ruled:
    """Ask a gate about the calls of a reply; without one all of them go."""
    if gate is None or not calls:
        return Ruled()
    rulings = await gate.review(calls, step=step, truncated=truncated)
    if any(ruling.verdict is Verdict.WAIT for ruling in rulings):
        return Ruled(waits=True)
    by_call = {call.call_id: ruling for call, ruling in zip(calls, rulings, strict=True)}
    return Ruled(
        refusals={name: ruling.text for name, ruling in by_call.items() if ruling.verdict is not Verdict.GO},
        notes={name: ruling.text for name, ruling in by_call.items() if ruling.verdict is Verdict.GO},
        ends=any(ruling.verdict is Verdict.END for ruling in rulings),
    )


class ApprovalService(Protocol):
    """Asks people for approval, and records the decisions that take effect."""

    async def ask(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, ApprovalResolution]:
        """Ask, and give back, by approval id, what was decided at once. The others are durable when this returns."""
        ...

    def record_decision(self, request: ApprovalRequest, resolution: ApprovalResolution) -> None:
        """Record a decision that takes effect in the agent's audit chain, once."""
        ...


class PolicyGate:
    """`ApprovalGate` by a task's policy.

    With `plan`, nothing that has a side effect is carried out before a call of `propose_approach` in an earlier reply
    was approved; with `risky`, each call that `tools.policy.risks` calls so waits; with `every`, each that is not
    read-only. A call that cannot be read as one of an operation is let through: it will be refused where it is
    carried out.

    Args:
        read: What a call would be carried out as; None where it would be refused anyway.
    """

    def __init__(
        self,
        policy: ApprovalPolicy,
        *,
        agent_id: str,
        goal: str,
        read: Callable[[ToolCall, bool], Reading | None],
        approvals: ApprovalService | None,
        mask: SecretMask,
        earlier: RunState,
    ) -> None:
        self.policy, self._agent_id, self._goal = policy, agent_id, goal
        self._read, self._approvals, self._mask = read, approvals, mask
        self._requests, self._resolutions, plans = dict(earlier.requests), dict(earlier.resolutions), _approved(earlier)
        # The model has been told of it, too.
        self._planned = any(earlier.observed(request.call.call_id) for request in plans)
        self._put_away = frozenset(self._requests)
        self.approved = plans[-1].approach if plans else ""
        """The plan that people agreed to; empty before."""
        self.rejection = ""
        """Why the run ends, in words, once a plan was rejected."""

    @property
    def wants_proposal(self) -> bool:
        """Whether nothing may be changed before a plan is approved, and none is yet."""
        return self.policy is ApprovalPolicy.PLAN and not self._planned

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        readings = {call.call_id: self._read(call, truncated) for call in calls}
        needs = {call.call_id: self._need(call, readings[call.call_id], step) for call in calls}
        asked = [need for need in needs.values() if isinstance(need, ApprovalRequest)]
        if unknown := [request for request in asked if request.approval_id not in self._resolutions]:
            if self._approvals is None:
                return [_refusal(needs[call.call_id]) for call in calls]
            self._resolutions.update(await self._approvals.ask(unknown))
        if any(request.approval_id not in self._resolutions for request in asked):
            return [
                Ruling(verdict=Verdict.WAIT if isinstance(needs[call.call_id], ApprovalRequest) else Verdict.GO)
                for call in calls
            ]
        return [self._ruling(needs[call.call_id]) for call in calls]

    def _need(self, call: ToolCall, reading: Reading | None, step: int) -> ApprovalRequest | str | None:
        """What a call needs first: somebody's decision, or (a text) something else; None: nothing."""
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

    def _request(self, call: ToolCall, reading: Reading, step: int, reasons: tuple[str, ...] = ()) -> ApprovalRequest:
        approval_id = f"{self._agent_id}.{call.call_id}"
        if known := self._requests.get(approval_id):
            return known
        arguments = self._mask(call.arguments)[:MAX_APPROACH_CHARS]
        request = ApprovalRequest(
            approval_id=approval_id,
            agent_id=self._agent_id,
            policy=self.policy,
            goal=self._mask(self._goal)[:MAX_APPROACH_CHARS],
            approach=self._mask(_reading_text(reading))[:MAX_APPROACH_CHARS],
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
            return Ruling(verdict=Verdict.REFUSE, text=need)
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
                return Ruling(verdict=Verdict.REFUSE, text=f"{approver} asks for a change{comment}\n{again}{away}")
            case ApprovalDecision.REJECTED if plan:
                self.rejection = f"the approach was rejected by {approver}{comment}"
                return Ruling(verdict=Verdict.END, text=self.rejection)
            case ApprovalDecision.REJECTED:
                text = f"not carried out: {approver} rejected this call{comment}\nGo on without it.{away}"
                return Ruling(verdict=Verdict.REFUSE, text=text)


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


def _reading_text(reading: Reading) -> str:
    if reading.spec.name == PROPOSE:
        parts = (str(reading.arguments.get("approach", "")), str(reading.arguments.get("reasoning", "")))
        return "\n\n".join(part.strip() for part in parts if part.strip())
    arguments = "\n".join(f"{name}: {value}" for name, value in reading.arguments.items() if value is not None)
    return f"{reading.spec.name}\n{arguments}" if arguments else reading.spec.name


def _refusal(need: ApprovalRequest | str | None) -> Ruling:
    if need is None:
        return Ruling()
    return Ruling(verdict=Verdict.REFUSE, text=need if isinstance(need, str) else NOBODY)
