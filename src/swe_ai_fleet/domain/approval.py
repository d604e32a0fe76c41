"""Approvals: requests of agents to people, and their decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import RequestLimits
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.task import ApprovalPolicy


class ApprovalDecision(StrEnum):
    """Go on as proposed; do not; propose again, taking the adjustment into account."""

    APPROVED = "approved"
    REJECTED = "rejected"
    ADJUSTED = "adjusted"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFindings:
    """The results of all memory searches of an agent together. Untrusted text, masked.

    `coverage` is the percentage of the questions that memory can answer; `gaps` are the other questions. `content`
    holds the passages, each after its source; `sources` names the sources.
    """

    coverage: float = 100.0
    gaps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """One request for a decision. Everything but the ids and times is untrusted text, masked.

    `approach` is the plan, or the call in words; `call` is the tool call (`propose_approach` for a plan);
    `reasons` say why it counts as risky; `memory` has the memory searches so far, as the agent saw their results, and
    `memory_results` the same in parts (None: there was no search); `diff` is the workspace's so far, complete in
    `diff_ref` where it was cut. Times are ISO 8601, UTC.
    """

    approval_id: str
    agent_id: str
    policy: ApprovalPolicy
    goal: str
    approach: str
    call: ToolCall
    step: int
    requested_at: str
    expires_at: str = ""
    reasons: tuple[str, ...] = ()
    memory: str = ""
    memory_results: MemoryFindings | None = None
    diff: str = ""
    diff_ref: BlobRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalResolution:
    """A decision, who made it, and why. `caller` is the authenticated name, `approver` the name that they gave.

    An expired request is rejected by `time-out`. `limits` are those of the search for another approach to a plan.
    """

    approval_id: str
    decision: ApprovalDecision
    text: str = ""
    approver: str = ""
    caller: str = ""
    at: str = ""
    limits: RequestLimits | None = None
