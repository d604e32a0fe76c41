"""One judge's votes: the same candidates in several orders, one question each.

In the prompt the candidates have letters, and everything about them is fenced off. The choice is read leniently but
never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from pydantic import Field

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.prompting import (
    LETTERS,
    Fence,
    ballot_order,
    changed_lines,
    changed_tests,
    critique_text,
    evidence,
    fair_shares,
    request_sections,
)
from swe_ai_fleet.agents.run_deps import RunContext, RunEnding, RunRecorder, short_limits
from swe_ai_fleet.agents.spec import RecordedQuestions
from swe_ai_fleet.agents.structured_output import (
    AnswerForm,
    NonEmptyText,
    Shape,
    Text,
    as_text,
    objects_in,
    opening,
    schema_of,
)
from swe_ai_fleet.domain.assignment import JudgeAssignment
from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.errors import ContextTooLong, InvalidRequest, ModelError, NotFound
from swe_ai_fleet.domain.message import Message, Sampling
from swe_ai_fleet.domain.review import Vote
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import BlobStore, Clone, SecretMask
from swe_ai_fleet.tools.truncation import beginning

MAX_CHARS = 120_000
UNKNOWN_CONTEXT_CHARS = 48_000
_LEAST_CHARS_PER_TOKEN = 3
# The share of the context for the ballot; the rest is for the answer, and for texts with more tokens a character.
_USED = 0.7
_LEAST_CHARS = 400
_TASK_CHARS = 16_000
MAX_READ_CHARS = 50_000
_KEYS = ("choice", "vote", "winner", "best", "answer", "candidate", "decision")
_REASONS = ("reason", "reasoning", "rationale", "why", "explanation", "justification")
_LETTER = re.compile(
    r"[\s\"'`*_.():\[\]]{0,20}(?:candidate[\s_]{0,3})?([A-Za-z])[\s\"'`*_.():\[\]]{0,20}", re.IGNORECASE
)
_SAID = re.compile(
    r"\b(?i:choice|vote|winner|answer|verdict)[\"'`*_]{0,4}\s{0,3}(?:[:=]|\bis\b)[\s\"'`*_]{0,6}(?i:candidate\s{1,3})?"
    r"[\"'`*_(]{0,4}([A-Z])\b"
)
ATTEMPTS = 2
"""Replies to one ballot before the vote counts as unreadable."""
MAX_REASON_CHARS = 2_000
AGAIN = (
    "That names no candidate: {{problem}}. Answer with nothing but a JSON object with the keys reason and choice; "
    "choice is one of {letters}."
)
NEXT_BALLOT = "next ballot"
_SEEDS = 2**31


def room_for(context_tokens: int) -> int:
    """How many characters a ballot may have in a context of so many tokens (0: unknown)."""
    if not context_tokens:
        return UNKNOWN_CONTEXT_CHARS
    return min(MAX_CHARS, round(context_tokens * _LEAST_CHARS_PER_TOKEN * _USED))


def judge_messages(
    assignment: JudgeAssignment, order: Sequence[str], patches: Mapping[str, bytes], *, room: int, mask: SecretMask
) -> tuple[Message, ...]:
    """One ballot of about `room` characters.

    Candidates have letters in its order; of their authors only their answers to reviewers appear.
    """
    task = assignment.task
    candidates_by_id = {candidate.candidate_id: candidate for candidate in assignment.candidates}
    reports = {report.candidate_id: report for report in assignment.reports}
    # The digests depend on the texts themselves, so nobody can write the fence's word into one of them.
    fence = Fence(
        mask,
        task.execution_id,
        *sorted(patch.digest for candidate in candidates_by_id.values() if (patch := candidate.artifacts.patch)),
    )
    sections = [(title, beginning(mask(text), min(_TASK_CHARS, room // 4))) for title, text in request_sections(task)]
    chars_left = room - sum(len(text) for _, text in sections)
    part = max(_LEAST_CHARS, chars_left // 6 // max(1, len(order)))
    diffs = [patches.get(name, b"").decode("utf-8", "replace") for name in order]
    shares = fair_shares([len(diff) for diff in diffs], chars_left - 2 * part * len(order))
    for at, name in enumerate(order):
        artifacts, report = candidates_by_id[name].artifacts, reports.get(name, CheckReport(candidate_id=name))
        tests = changed_tests(report, fence, part // 2)
        text = [
            f"{changed_lines(artifacts)}:\n{fence(diffs[at], max(_LEAST_CHARS, shares[at]))}",
            "What the checks said:",
            evidence(report, fence, part // 2 if tests else part),
        ]
        if tests:
            text += ["Old tests that it changed, before and after:", tests]
        # Without the reviewers' names and scores: the judge must form its own opinion.
        reviews = [critique_text(critique) for critique in assignment.critiques if critique.candidate_id == name]
        if reviews:
            listed = "\n".join(f"Review {number}: {review}" for number, review in enumerate(reviews, start=1))
            text += ["What reviewers found:", fence(listed, part)]
        if answer := fence(assignment.answers.get(name, ""), part // 2):
            text += ["What its author answered to them:", answer]
        sections.append((f"Candidate {LETTERS[at]}", "\n".join(text)))
    return opening("judge", sections, warning=fence.warning)


class ChoiceShape(Shape):
    reason: Text = Field(default="", description="What decides between them, in one or two sentences.")
    choice: NonEmptyText = Field(description="The letter of the candidate that should be applied.")


def choice_schema(letters: str) -> dict[str, object]:
    """The schema of an answer; the reason comes first, so that the choice can follow from it."""
    schema = schema_of(ChoiceShape)
    properties = cast("dict[str, dict[str, object]]", schema["properties"])
    properties["choice"] = {**properties["choice"], "enum": list(letters)}
    return schema


def read_choice(texts: Sequence[str], letters: str) -> tuple[str, str]:
    """The letter chosen in the texts of a reply, and the reason. Raises ValueError if there is none, or several."""
    texts = [well_formed(text.rpartition("</think>")[2])[:MAX_READ_CHARS] for text in texts]
    # A choice in a JSON object counts; the text is only read if there is none.
    choices = list(_in_objects(texts, letters)) or list(_letters_in_text(texts, letters))
    chosen = {letter: reason for letter, reason in reversed(choices) if letter}
    if len(chosen) > 1:
        raise ValueError(f"it chose several candidates ({', '.join(sorted(chosen))})")
    if not chosen:
        raise ValueError(f"it chose none of the candidates {', '.join(letters)}")
    return chosen.popitem()


def _in_objects(texts: Sequence[str], letters: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        for value in objects_in(text):
            fields = {str(key).strip().lower(): part for key, part in value.items()}
            for chosen in [part for key in _KEYS if isinstance(part := fields.get(key), str)][:1]:
                yield _letter(chosen, letters), next((as_text(fields[key]) for key in _REASONS if key in fields), "")


def _letters_in_text(texts: Sequence[str], letters: str) -> Iterator[tuple[str, str]]:
    """Letters that are the whole reply, or follow a word like `choice:`."""
    for text in texts:
        if letter := _letter(text, letters):
            yield letter, ""
        for match in _SAID.finditer(text):
            if match[1] in letters:
                yield match[1], as_text(text)


def _letter(text: str, letters: str) -> str:
    match = _LETTER.fullmatch(text) if len(text) <= 60 else None
    return match[1].upper() if match and match[1].upper() in letters else ""


@dataclass(frozen=True, kw_only=True)
class JudgeRun:
    recorder: RunRecorder

    async def run(self, assignment: JudgeAssignment, clone: Clone) -> tuple[Vote, ...]:
        """One judge's votes, `samples` of them, each over the candidates in another order.

        Two replies without a choice, faults of the model and reached limits are votes with an error. Raises as
        `RunRecorder.run` does.
        """
        judging = _Judging(assignment, clone.environment.key, self.recorder.blobs)
        return await self.recorder.run(assignment, clone, judging.work)


class _Judging:
    """One judging in progress. Its conversation in the log is that of the current ballot."""

    def __init__(self, assignment: JudgeAssignment, environment: str, blobs: BlobStore) -> None:
        self._assignment, self._environment, self._blobs = assignment, environment, blobs
        self._patches: dict[str, bytes] = {}
        self._room, self._narrowed, self._fault = 0, False, ""

    async def work(self, run: RunContext) -> RunEnding[tuple[Vote, ...]]:
        assignment, self._mask = self._assignment, run.deps.mask
        budget = Budget(short_limits(assignment.task.constraints.limits), spent=run.earlier.usage)
        questions: RecordedQuestions | None = None
        try:
            async with budget.time_limit():
                questions = await self._open(run, budget)
        except TimeoutError:
            self._fault = _late(budget)
        except (ModelError, InvalidRequest, NotFound) as error:
            self._fault = str(error)
        names = [candidate.candidate_id for candidate in assignment.candidates]
        votes: list[Vote] = []
        for sample in range(assignment.known + 1, assignment.known + assignment.samples + 1):
            order = ballot_order(names, assignment.seed, sample)
            vote = Vote(judge_id=assignment.judge_id, sample=sample, order=order)
            # After a fault of the model, no further ballot is sent.
            votes.append(await self._vote(vote, questions, budget) if questions and not self._fault else vote)
        lost = self._hidden(self._fault) or "the judge could not run"
        votes = [vote if vote.choice or vote.error else replace(vote, error=lost) for vote in votes]
        stop = StopReason.MODEL_ERROR if self._fault else StopReason.MALFORMED_REPLIES
        if any(vote.choice for vote in votes):
            stop = StopReason.FINAL_ANSWER
        return RunEnding(value=tuple(votes), stop_reason=stop, usage=budget.total(), error=self._hidden(self._fault))

    async def _open(self, run: RunContext, budget: Budget) -> RecordedQuestions:
        """Open the model and read the patches. Raises ModelError, InvalidRequest, NotFound."""
        assignment = self._assignment
        for candidate in assignment.candidates:
            if (patch := candidate.artifacts.patch) is not None:
                self._patches[candidate.candidate_id] = await self._blobs.get(patch)
        perspective = replace(assignment.perspective, seed=assignment.seed)
        questions, capabilities = await RecordedQuestions.opened(
            run, assignment.task, perspective, budget, environment=self._environment
        )
        self._room = room_for(capabilities.max_model_len)
        return questions

    async def _vote(self, vote: Vote, questions: RecordedQuestions, budget: Budget) -> Vote:
        """One vote: a choice or an error. Faults of the model are not raised."""
        if spent := budget.spent(iterations=0):
            self._fault = f"the judge's limit is reached ({spent})"
            return vote
        letter, reason, error = "", "", ""
        with budget.child(budget.limits) as questions.budget:
            try:
                async with budget.time_limit():
                    letter, reason = await self._choice(vote, questions)
            except TimeoutError:
                error = self._fault = _late(budget)
            except ModelError as fault:
                error = self._fault = str(fault)
            except ValueError as fault:
                error = f"the judge's answer cannot be used: {fault}"
            usage = questions.budget.total()
        choice = vote.order[LETTERS.index(letter)] if letter else ""
        return replace(vote, choice=choice, reason=self._hidden(reason), usage=usage, error=self._hidden(error))

    async def _choice(self, vote: Vote, questions: RecordedQuestions) -> tuple[str, str]:
        """The chosen letter and the reason. Raises ValueError saying why there is none, ModelError."""
        letters = LETTERS[: len(vote.order)]
        form = AnswerForm(
            schema=choice_schema(letters),
            read=lambda texts: read_choice(texts, letters),
            again=AGAIN.format(letters=", ".join(letters)),
            attempts=ATTEMPTS,
        )
        sampling = Sampling(
            temperature=self._assignment.perspective.temperature, seed=(self._assignment.seed + vote.sample) % _SEEDS
        )
        step = questions.step
        try:
            return await questions.answer(self._ballot(vote, questions), form, sampling)
        except ContextTooLong:
            if self._narrowed:
                raise
            # The estimate of what fits was wrong, for the other ballots too.
            self._narrowed, self._room = True, self._room // 2
            form = replace(form, attempts=ATTEMPTS - (questions.step - step))
            return await questions.answer(self._ballot(vote, questions), form, sampling)

    def _ballot(self, vote: Vote, questions: RecordedQuestions) -> tuple[Message, ...]:
        messages = judge_messages(self._assignment, vote.order, self._patches, room=self._room, mask=self._mask)
        return questions.begin(messages, NEXT_BALLOT)

    def _hidden(self, text: str) -> str:
        return self._mask(text)[:MAX_REASON_CHARS]


def _late(budget: Budget) -> str:
    return f"the judge timed out after {budget.limits.timeout_seconds:g} seconds"
