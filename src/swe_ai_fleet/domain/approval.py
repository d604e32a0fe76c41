"""What a person is asked before an agent goes on, and what they answer."""

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
    """What memory was asked by an agent, and what it knows; all searches together. Untrusted text, masked.

    `coverage` is the share, in percent, of what was asked that it knows; `gaps` are the others. `content` holds the
    passages, each behind its source; `sources` name them.
    """

    coverage: float = 100.0
    gaps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """One thing to be decided. Everything but the ids and times is untrusted text, masked.

    `approach` is the plan, or the call in words; `call` is the tool call it is about (`propose_approach` for a plan);
    `reasons` say why it counts as risky; `memory` is what searching gave so far, as the agent
    was told it, and `memory_results` the same in parts (None: nothing was asked); `diff` is the workspace's so far,
    whole in `diff_ref` where it was cut. Times are ISO 8601, UTC.
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
    """What was decided, by whom, and why. `caller` is who authenticated, `approver` whom they named.

    A request that nobody answered in time is rejected by `time-out`. `limits` are those of the search for another
    approach to a plan.
    """

    approval_id: str
    decision: ApprovalDecision
    text: str = ""
    approver: str = ""
    caller: str = ""
    at: str = ""
    limits: RequestLimits | None = None
