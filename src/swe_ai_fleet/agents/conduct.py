"""How a run goes: what in it ends it beside its budget, and what the agent is told where it goes wrong."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.agents.loop_guard import Advice, LoopGuard, Remedy
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import Step, StopReason

REMINDER = (
    "Your reply called no tool. Go on with the task by calling one, "
    "or call final_answer with your result if it is done."
)
CUT_OFF = "Your reply was cut off because it was too long. Go on in smaller steps: one call, with shorter arguments."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What ends a run beside its budget. Counts are of things in a row; 0 means never.

    `abort_on_error` ends it at the first failed call; `answer_at_limit` asks once more, without tools, for an answer
    where a limit ended it, and allows `last_words_seconds` for that, and no more than the whole run had.
    """

    max_reminders: int = 2
    max_malformed_replies: int = 5
    max_tool_errors: int = 0
    abort_on_error: bool = False
    answer_at_limit: bool = False
    last_words_seconds: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What follows from a step: the run ends, or the agent is told something; `loop` is what the guard noticed."""

    stop: StopReason | None = None
    texts: tuple[str, ...] = ()
    loop: Advice | None = None


class Conduct:
    """Judges one step after the other.

    Args:
        rules: What ends the run.
        guard: Notices loops; None: nobody does.
    """

    def __init__(self, rules: Rules, guard: LoopGuard | None = None) -> None:
        self._rules = rules
        self._guard = guard
        self._idle, self._malformed, self._failed = 0, 0, 0

    def judge(self, step: Step, *, truncated: bool, calls_left: int) -> Judgement:
        """What follows from a step whose calls are answered; `calls_left` is what the budget leaves of them."""
        stop = self._stop(step, truncated, calls_left)
        if stop is not None:
            return Judgement(stop=stop)
        texts = () if step.observations else (CUT_OFF if truncated else REMINDER,)
        loop = self._guard.observe(step) if self._guard is not None else None
        if loop is None:
            return Judgement(texts=texts)
        if loop.remedy is Remedy.STOP:
            return Judgement(stop=StopReason.LOOP, loop=loop)
        return Judgement(texts=(*texts, loop.text), loop=loop)

    def _stop(self, step: Step, truncated: bool, calls_left: int) -> StopReason | None:
        rules, seen = self._rules, [observation.result for observation in step.observations]
        if any(result.operation == FINAL_ANSWER.name and result.success for result in seen):
            return StopReason.FINAL_ANSWER
        if rules.abort_on_error and any(not result.success for result in seen):
            return StopReason.TOOL_ERROR
        for result in seen:
            self._failed = 0 if result.success else self._failed + 1
        self._idle = 0 if seen else self._idle + 1
        malformed = truncated or (bool(seen) and all(result.outcome is Outcome.INVALID for result in seen))
        self._malformed = self._malformed + 1 if malformed else 0
        # Calls that were not run because none are left have not failed.
        if rules.max_tool_errors and calls_left and self._failed >= rules.max_tool_errors:
            return StopReason.TOOL_ERROR
        if rules.max_malformed_replies and self._malformed >= rules.max_malformed_replies:
            return StopReason.MALFORMED_REPLIES
        return StopReason.NO_TOOL_CALLS if self._idle > rules.max_reminders else None


def answer_of(steps: list[Step]) -> str:
    """What `final_answer` was given, else the last thing the model said."""
    for step in reversed(steps):
        for seen in step.observations:
            if seen.result.operation == FINAL_ANSWER.name and seen.result.success:
                return seen.result.content
        if step.reply.content:
            return step.reply.content
    return ""
