"""A model's scores of one candidate: the probability that it solves its task, and verdicts on rubric items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, fsum
from typing import Annotated

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.judging import room_for
from swe_ai_fleet.agents.prompting import Fence, changed_lines, changed_tests, evidence, request_sections
from swe_ai_fleet.agents.recorded_run import read_run
from swe_ai_fleet.agents.run_deps import RunContext, RunDeps, RunEnding, RunRecorder, short_limits
from swe_ai_fleet.agents.spec import RecordedQuestions
from swe_ai_fleet.agents.structured_output import Shape, Text, keyed_by, objects_in, opening, reply_in_shape
from swe_ai_fleet.domain.assignment import CheckAssignment, ScoreAssignment
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.candidate import CheckReport, Perspective
from swe_ai_fleet.domain.errors import ContextTooLong, FleetError, InvalidRequest, ModelError, NotFound
from swe_ai_fleet.domain.message import Message, ModelCapabilities, ModelReply, ModelRequest, Sampling
from swe_ai_fleet.domain.review import VERIFIER_PROFILE, VerifierScore
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.truncation import beginning

TOP_LOGPROBS = 20
LEAST_MASS = 0.5
"""The least probability of yes and no together as the first word; below that, the reply is no answer."""
QUESTION = "Does the change solve the task as it is written, completely and without breaking anything?"
BY_WORD = "Answer with one word: yes or no."
BY_SCHEMA = 'Answer with one JSON object: {"probability": the probability, from 0 to 1, that the answer is yes}'
SCHEMA = {
    "type": "object",
    "properties": {"probability": {"type": "number", "minimum": 0, "maximum": 1}},
    "required": ["probability"],
    "additionalProperties": False,
}
_BLANKS = " \t\r\n▁Ġ"
"""Blanks around tokens, including those that some tokenizers write as other characters."""
_TASK_CHARS = 16_000
_LEAST_CHARS = 400
_LAST_CALLS = 30
_ERROR_CHARS = 2_000
MAX_SECONDS = 180.0
MAX_DIFF_CHARS = 60_000
MAX_EVIDENCE_CHARS = 6_000
_CHARS_PER_TOKEN = 3
_DIFF_SHARE = 0.5


def yes_share(likely: Sequence[tuple[str, float]]) -> float | None:
    """`p(yes) / (p(yes) + p(no))` of a reply's first token, in any case, from natural log-probabilities.

    None if the two have less than `LEAST_MASS` together: the reply starts with another word.
    """
    words = [(token.strip(_BLANKS).lower(), exp(logprob)) for token, logprob in likely]
    yes, no = (fsum(share for word, share in words if word == answer) for answer in ("yes", "no"))
    return yes / (yes + no) if yes + no >= LEAST_MASS else None


def probability_in(texts: Sequence[str]) -> float:
    """The probability in an answer. Raises ValueError if there is none from 0 to 1, or several."""
    probabilities = {
        float(value)
        for text in texts
        for fields in objects_in(text.rpartition("</think>")[2])
        if isinstance(value := fields.get("probability"), int | float)
        and not isinstance(value, bool)
        and 0 <= value <= 1
    }
    if len(probabilities) != 1:
        raise ValueError(f"it names {'several probabilities' if probabilities else 'no probability from 0 to 1'}")
    return probabilities.pop()


def trajectory(run: RunState, summary: str) -> str:
    ended = [entry for entry in run.entries if entry.outcome is not Outcome.STARTED]
    counted = Counter(entry.name for entry in ended)
    calls = ", ".join(f"{name} {number} times" for name, number in counted.most_common())
    last = "\n".join(f"- {entry.name}: {entry.outcome}" for entry in ended[-_LAST_CALLS:])
    parts = [f"{len(ended)} tool calls: {calls}\nThe last ones:\n{last}" if ended else "", summary]
    return "\nIts last words:\n".join(parts) if summary else parts[0]


@dataclass(frozen=True, kw_only=True)
class ScoreRun:
    recorder: RunRecorder

    async def run(self, assignment: ScoreAssignment, clone: Clone) -> VerifierScore:
        """The verifier model's score of a candidate.

        Faults of the model, unusable answers and reached limits are scores with an error. An interrupted scoring starts
        over: it is a request or two. Raises as `RunRecorder.run` does.
        """
        scoring = _Scoring(self.recorder, assignment, clone.environment.key)
        return await self.recorder.run(assignment, clone, scoring.work)


class _LimitReached(Exception):
    def __init__(self, limit: StopReason) -> None:
        super().__init__(f"the verifier's limit is reached ({limit})")
        self.limit = limit


class _Scoring:
    def __init__(self, recorder: RunRecorder, assignment: ScoreAssignment, environment: str) -> None:
        self._recorder = recorder
        self._assignment = assignment
        self._environment = environment
        self._mask = recorder.deps.mask
        self._patch = self._trajectory = ""
        self._room = 0

    async def work(self, run: RunContext) -> RunEnding[VerifierScore]:
        budget = Budget(short_limits(self._assignment.task.constraints.limits), spent=run.earlier.usage)
        score = VerifierScore(candidate_id=self._assignment.candidate.candidate_id)
        raw, error, reason = None, "", StopReason.MODEL_ERROR
        try:
            async with budget.time_limit():
                questions, capabilities = await self._open(run, budget)
                score = replace(score, model=capabilities.model)
                raw, reason = await self._ask(questions, logprobs=capabilities.logprobs), StopReason.FINAL_ANSWER
        except TimeoutError:
            error = f"the verifier had no more than {budget.limits.timeout_seconds:g} seconds"
        except (ModelError, InvalidRequest, NotFound) as fault:
            error = str(fault)
        except _LimitReached as fault:
            error, reason = str(fault), fault.limit
        except ValueError as fault:
            error, reason = f"the verifier's answer cannot be used: {fault}", StopReason.MALFORMED_REPLIES
        score = replace(score, raw=raw, score=raw, usage=budget.total(), error=self._mask(error)[:_ERROR_CHARS])
        return RunEnding(value=score, stop_reason=reason, usage=score.usage, error=score.error)

    async def _open(self, run: RunContext, budget: Budget) -> tuple[RecordedQuestions, ModelCapabilities]:
        """Open the model; read the patch and the author's run. Raises ModelError, InvalidRequest, NotFound."""
        assignment, candidate, task = self._assignment, self._assignment.candidate, self._assignment.task
        if candidate.artifacts.patch is not None:
            self._patch = (await self._recorder.blobs.get(candidate.artifacts.patch)).decode("utf-8", "replace")
        work = await read_run(self._recorder.log, task.tenant, assignment.execution_id, candidate.agent_id)
        self._trajectory = trajectory(work, candidate.summary)
        perspective = Perspective(model_profile=VERIFIER_PROFILE)
        # Asked anew, since the log does not keep the probabilities of earlier replies.
        opened = await RecordedQuestions.opened(
            run, task, perspective, budget, environment=self._environment, anew=True
        )
        self._room = room_for(opened[1].max_model_len)
        return opened

    async def _ask(self, questions: RecordedQuestions, *, logprobs: bool) -> float:
        """The score, by log-probabilities if the server gives them. Raises ValueError, ModelError, _LimitReached."""
        if logprobs:
            # A server's default temperature would distort the probabilities.
            sampling = Sampling(temperature=1.0, max_tokens=1)
            request = ModelRequest((), sampling=sampling, top_logprobs=TOP_LOGPROBS)
            reply = await self._reply(questions, BY_WORD, request)
            if (share := yes_share(reply.top_logprobs)) is not None:
                return share
        reply = await self._reply(questions, BY_SCHEMA, ModelRequest((), schema=SCHEMA))
        return probability_in([reply.message.content, *(call.arguments for call in reply.message.tool_calls)])

    async def _reply(self, questions: RecordedQuestions, form: str, request: ModelRequest) -> ModelReply:
        if spent := questions.budget.spent(iterations=0):
            raise _LimitReached(spent)
        try:
            return await questions.reply(replace(request, messages=questions.begin(self._prompt(form))))
        except ContextTooLong:
            # The estimate of what fits was wrong.
            self._room //= 2
            return await questions.reply(replace(request, messages=questions.begin(self._prompt(form))))

    def _prompt(self, form: str) -> tuple[Message, ...]:
        return opening("score", list(self._sections(form)), warning=self._fence.warning)

    def _sections(self, form: str) -> Iterator[tuple[str, str]]:
        """The sections of the request; the question comes last, so that both forms share all bytes before it."""
        report, artifacts, fence = self._assignment.report, self._assignment.candidate.artifacts, self._fence
        part = max(_LEAST_CHARS, self._room // 12)
        for title, text in request_sections(self._assignment.task):
            yield title, beginning(self._mask(text), min(_TASK_CHARS, self._room // 4))
        yield "The change", f"{changed_lines(artifacts)}:\n{fence(self._patch, self._room // 2)}"
        yield "What the checks said", evidence(report, fence, part)
        if report.foreign is not None:
            yield "What the verdict rests on", fence("\n".join(report.reasons), part // 2)
        yield "Old tests that it changed, before and after", changed_tests(report, fence, part // 2)
        yield "How its author went about it", fence(self._trajectory, part)
        yield "Question", f"{QUESTION} {form}"

    @property
    def _fence(self) -> Fence:
        patch = self._assignment.candidate.artifacts.patch
        # The digest depends on the text itself, so nobody can write the fence's word into it.
        return Fence(self._mask, self._assignment.execution_id, self._trajectory, patch.digest if patch else "")


def _number(value: object) -> object:
    """The number of an item; models also write `Item 2` or `2.`."""
    if isinstance(value, str):
        digits = "".join(letter if letter.isdigit() else " " for letter in value[:20]).split()
        return int(digits[0]) if digits else value
    return value


class ItemShape(Shape):
    item: Annotated[int, BeforeValidator(_number)] = Field(description="The item's number.")
    verdict: Text = Field(description="met, partly or not.")
    quote: Text = Field(default="", description="The exact lines of the change that show it; empty where it is not.")
    file: Text = Field(default="", description="The file that the quote stands in.")
    reason: Text = Field(default="", description="Why, in one sentence.")


class RubricShape(Shape):
    items: Annotated[list[ItemShape], keyed_by("item")] = Field(description="One entry for each item.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricOpinion:
    """A model's verdicts on the items (untrusted text), and its usage. Without an answer, `error` says why."""

    verdicts: tuple[ItemShape, ...] = ()
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RubricJudge:
    """Asks the task's first model profile, once for a candidate."""

    deps: RunDeps

    async def opinion(
        self, assignment: CheckAssignment, items: Sequence[str], diff: str, report: CheckReport
    ) -> RubricOpinion:
        """The model's verdicts on the items. Faults of the model and unusable answers are opinions with an error."""
        task, mask = assignment.task, self.deps.mask
        trail = AuditTrail(execution_id=assignment.execution_id, agent_id=f"rubric-{assignment.candidate_id}")
        budget = Budget(Limits(timeout_seconds=MAX_SECONDS))
        name = ""
        try:
            model = self.deps.model(task, Perspective(model_profile=next(iter(task.profiles), "")), trail)
            capabilities = await model.probe()
            name = capabilities.model
            budget.begin(self.deps.price(name))
            room = round(capabilities.max_model_len * _CHARS_PER_TOKEN * _DIFF_SHARE) or MAX_DIFF_CHARS
            digest = assignment.patch.digest if assignment.patch else ""
            fence = Fence(mask, task.execution_id, assignment.candidate_id, digest)
            numbered = "\n".join(f"{number}. {mask(item)}" for number, item in enumerate(items, start=1))
            sections = (
                ("Task", beginning(mask(task.description), min(_TASK_CHARS, room // 4))),
                ("Items", numbered),
                ("The change", fence(diff, min(MAX_DIFF_CHARS, room))),
                ("What the checks said", evidence(report, fence, min(MAX_EVIDENCE_CHARS, room // 4))),
            )
            messages = opening("rubric", sections, count=len(items), warning=fence.warning)
            answer = await reply_in_shape(model, messages, RubricShape, budget=budget, check=_check)
        except FleetError as error:
            return RubricOpinion(model=name, usage=budget.total(), error=mask(error.message))
        return RubricOpinion(verdicts=tuple(answer.items), model=name, usage=budget.total())


def _check(answer: RubricShape) -> str:
    return "" if answer.items else "the list of items is empty"
