"""Progress of a run's plans, as their calls are answered.

The id of a plan's call says which step of which plan it belongs to, so that a resumed run knows its progress. The
result of a step may contradict the plan's expectation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from swe_ai_fleet.agents.planning.planner import Operations
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import OnFailure, Plan, PlanReport, PlanStep, Step, StepReport, StepStatus

_ID = re.compile(r"p([1-9]\d{0,3})([svaf])([1-9]\d{0,3})t([1-9]\d{0,3})(?:n([0-9a-f]{8}))?")
_EXIT = re.compile(r"exit(?: code)?[ :=]{0,3}(\d{1,3})", re.IGNORECASE)
_MOST_REASON_CHARS = 300
_RETRIES = 2
"""How often a step with `on_failure: retry` is retried."""
_KEEP_FILES = frozenset({"git_add", "git_commit", "git_branch", "git_fetch", "git_push", "tests_lint"})
"""Operations that write to the workspace, but change no file that affects tests."""


class RequestPurpose(StrEnum):
    """A step of the plan; an inspection of its changes; a request for approval; the final answer."""

    STEP = "s"
    VERIFY = "v"
    APPROVE = "a"
    FINISH = "f"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCallId:
    """Call `attempt` for step (or inspection) `number` of plan `plan`, all counted from 1.

    `nonce` is eight hexadecimal digits of the process that makes the calls, so that a decision about a call of one run
    never applies to another run.
    """

    plan: int
    purpose: RequestPurpose
    number: int = 1
    attempt: int = 1
    nonce: str = ""

    def __str__(self) -> str:
        return f"p{self.plan}{self.purpose}{self.number}t{self.attempt}{self.nonce and 'n' + self.nonce}"

    @classmethod
    def read(cls, text: str) -> PlanCallId | None:
        """The parts of an id; None if it is not that of a plan's call."""
        match = _ID.fullmatch(text)
        if match is None:
            return None
        return cls(
            plan=int(match[1]),
            purpose=RequestPurpose(match[2]),
            number=int(match[3]),
            attempt=int(match[4]),
            nonce=match[5] or "",
        )


def contradicts(step: PlanStep, result: ToolResult) -> str:
    """How a result contradicts the plan; empty if it does not.

    A failed call contradicts it, and an unmet expectation: `exit N` is compared with the exit code (0 or 1 for calls
    without one), any other text must be in the result literally. An expected exit code other than 0 is no failure. In
    a truncated result, a missing text proves nothing.
    """
    exit_code = _EXIT.fullmatch(step.expect.strip())
    if exit_code is not None:
        code = result.exit_code if result.exit_code is not None else int(not result.success)
        return (
            ""
            if code == int(exit_code[1])
            else f"expected {exit_code[0]}, it was {code}. {_outcome_text(result)}".rstrip()
        )
    if not result.success:
        return _outcome_text(result)
    if step.expect and step.expect not in result.content and not result.truncated:
        return f"its result does not show {step.expect[:_MOST_REASON_CHARS]!r}"
    return ""


def _outcome_text(result: ToolResult) -> str:
    return "" if result.success else " ".join((result.error or str(result.outcome))[:_MOST_REASON_CHARS].split())


class PlanProgress:
    """The plans of one run and the status of each step."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._plans: list[list[StepReport]] = []
        self.changed = self._tested = False
        self.turns = 0
        """How many steps of the run, planned or not, have been observed."""
        self.reason = ""
        """Why a new plan is needed; empty if none is."""
        self.failure = ""
        """Why the plan was aborted; empty if it was not."""
        self.approved = self.looked = False
        """Whether the current plan was approved; whether the changes so far were inspected."""
        self.content = ""
        """The result of the last successful step."""
        self.met: bool | None = None
        self.missing = ""

    @property
    def plans(self) -> int:
        return len(self._plans)

    @property
    def untested(self) -> bool:
        """Whether files were changed and no test ran since."""
        return self.changed and not self._tested

    def begin(self, plan: Plan) -> None:
        """Start this plan; it replaces the remaining steps of the previous one."""
        for at, entry in enumerate(self._plans[-1] if self._plans else ()):
            if entry.status is StepStatus.UNREACHED:
                self._plans[-1][at] = replace(entry, status=StepStatus.REPLACED)
        self._plans.append(
            [
                StepReport(plan=self.plans + 1, number=number, step=step, status=StepStatus.UNREACHED)
                for number, step in enumerate(plan.steps, start=1)
            ]
        )
        self.reason = ""
        self.approved = False

    @property
    def steps(self) -> tuple[PlanStep, ...]:
        return tuple(entry.step for entry in self._plans[-1]) if self._plans else ()

    def due(self) -> tuple[PlanCallId, PlanStep] | None:
        """The next step and the id of its call; None at the end of the plan."""
        for number, entry in enumerate(self._plans[-1] if self._plans else (), start=1):
            if entry.status is StepStatus.UNREACHED:
                attempt = entry.attempts + 1
                return PlanCallId(
                    plan=self.plans, purpose=RequestPurpose.STEP, number=number, attempt=attempt
                ), entry.step
        return None

    def resume(self, steps: Sequence[Step], *, pending: bool = False, direct: Plan | None = None) -> None:
        """Restore the progress of an earlier process: the plans, from the texts beside their first calls, and results.

        If the last plan cannot be read, `reason` asks for a new one. `pending`: the calls of the last step are
        unanswered; `direct` is the first plan, if it was not the model's.
        """
        unread = False
        for number, step in enumerate(steps, start=1):
            calls = [call for each in step.reply.tool_calls if (call := PlanCallId.read(each.call_id)) is not None]
            while calls and self.plans < calls[0].plan:
                first = direct if direct is not None and not self.plans else None
                plan, problems = (first, ()) if first is not None else self._operations.read(step.reply.content)
                unread = bool(problems)
                self.begin(plan)
            if number < len(steps) or not pending:
                self.observe(step)
        if unread:
            self.reason = "it is no longer known"

    def observe(self, step: Step) -> None:
        self.turns += 1
        for observation in step.observations:
            call = PlanCallId.read(observation.call_id)
            if call is None or call.plan != self.plans:
                continue
            match call.purpose:
                case RequestPurpose.STEP:
                    self._executed(call, observation.result)
                case RequestPurpose.APPROVE:
                    self._reviewed(observation.result)
                case RequestPurpose.VERIFY:
                    self.looked = True
                case RequestPurpose.FINISH:
                    pass

    def report(self) -> PlanReport:
        entries = tuple(entry for entries in self._plans for entry in entries)
        return PlanReport(steps=entries, plans=self.plans, met=self.met, missing=self.missing)

    def _executed(self, call: PlanCallId, result: ToolResult) -> None:
        entries = self._plans[-1]
        if call.number > len(entries):
            return
        entry, step = entries[call.number - 1], entries[call.number - 1].step
        attempts, error, status = max(entry.attempts, call.attempt), contradicts(step, result), entry.status
        self._note_changes(step)
        where = f"step {call.number} ({step.tool} {step.operation}): {error}"
        match step.on_failure:
            case _ if not error:
                status, self.content = StepStatus.DONE, result.content
            case _ if result.outcome is Outcome.INTERRUPTED and self._reads(step):
                pass
            case OnFailure.SKIP:
                status = StepStatus.SKIPPED
            case _ if result.outcome in (Outcome.REFUSED, Outcome.INTERRUPTED):
                # A person or the policy refused the call, or its outcome is unknown: the model must make a new plan.
                status, self.reason = StepStatus.FAILED, where
            case OnFailure.REPLAN:
                status, self.reason = StepStatus.FAILED, where
            case OnFailure.RETRY if attempts <= _RETRIES and result.outcome is not Outcome.INVALID:
                pass
            case OnFailure.RETRY | OnFailure.ABORT:
                status, self.failure = StepStatus.FAILED, where
        entries[call.number - 1] = replace(entry, status=status, attempts=attempts, error=error)

    def _reviewed(self, result: ToolResult) -> None:
        self.approved = result.success
        if not result.success:
            self.reason = result.error or str(result.outcome)

    def _reads(self, step: PlanStep) -> bool:
        spec = self._operations.spec(step)
        return spec is not None and spec.read_only

    def _note_changes(self, step: PlanStep) -> None:
        spec = self._operations.spec(step)
        if spec is None or spec.read_only or spec.name in _KEEP_FILES:
            return
        if spec.tool == "tests":
            self._tested = True
        elif "workspace" in spec.locks:
            self.changed, self._tested, self.looked = True, False, False
