"""What a run is made of, whichever way it goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.agents.approval_gate import ApprovalGate
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.conduct import Rules
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.event import EventBody
from swe_ai_fleet.domain.message import Sampling
from swe_ai_fleet.domain.trajectory import Step
from swe_ai_fleet.ports import ChatModel, Journal


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The same for a run that goes step by step, by a plan, or by one and then the other.

    Attributes:
        model: The model that plans.
        toolbox: What it can call.
        history: The conversation; calls in it that nothing answers yet are carried out first.
        budget: What the run may spend.
        rules: What ends it beside that.
        journal: Where each reply is recorded (tool calls are recorded by the toolbox's audit trail); None: nowhere.
        guard: Notices loops, step by step; None: nobody does.
        gate: Decides which calls wait for a person; None: none does.
        sampling: How the model samples.
        steps: What an earlier part of the same run did.
        on_delta: Hears the model's text as it comes in.
        on_step: Hears each step once its calls are answered.
        news: Gives what the agent is to be told before its next reply, empty where there is nothing.
    """

    model: ChatModel
    toolbox: Toolbox
    history: History
    budget: Budget
    rules: Rules = field(default_factory=Rules)
    journal: Journal | None = None
    guard: LoopGuard | None = None
    gate: ApprovalGate | None = None
    sampling: Sampling = field(default_factory=Sampling)
    steps: Sequence[Step] = ()
    on_delta: Callable[[str], None] | None = None
    on_step: Callable[[Step], None] | None = None
    news: Callable[[], Awaitable[str]] | None = None

    def post(self, body: EventBody | None) -> None:
        """Record an event, where there is one and somewhere to."""
        if self.journal is not None and body is not None:
            self.journal.post(body)
