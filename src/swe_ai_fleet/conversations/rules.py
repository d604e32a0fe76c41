"""How a chat is conducted."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.agents.function_calling.profiles import CHAT
from swe_ai_fleet.agents.planning.complexity import THRESHOLD
from swe_ai_fleet.conversations.references import STALE_TURNS
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.task import PlanningMode


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRules:
    """How messages are answered.

    Attributes:
        limits: Of one message.
        mode: All of them answer a message that asks for one operation only without the model, and any other step by
            step with it; `hybrid` has complex requests begin with an outline.
        threshold: From which complexity on (0 to 1) a hybrid chat takes a request for complex.
        retry_waits: Seconds before each further try of a model call; none where the model tries again by itself.
        last_words_seconds: For the answer that is asked for where a limit ended the work.
        stale_turns: What was named longer ago is asked about.
        recalled: How many memories a message is given.
        recall_seconds: How long they are waited for.
        keep_seconds: How long it may take to keep one.
        at_once: How many messages are answered at the same time.
    """

    limits: Limits = CHAT
    mode: PlanningMode = PlanningMode.AGENTIC
    threshold: float = THRESHOLD
    retry_waits: tuple[float, ...] = (1.0, 3.0)
    last_words_seconds: float = 10.0
    stale_turns: int = STALE_TURNS
    recalled: int = 3
    recall_seconds: float = 3.0
    keep_seconds: float = 10.0
    at_once: int = 64
