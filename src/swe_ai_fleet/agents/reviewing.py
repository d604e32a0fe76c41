"""One peer's review of some candidates: it explores the code, answers in a fixed shape, and its proofs are run.

Everything about the candidates is fenced off in its prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import RunParts
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
    rule_sections,
)
from swe_ai_fleet.agents.review_answer import ReviewAnswer, answer_shape, no_review, read_answer, review_of
from swe_ai_fleet.agents.review_proofs import Proving, may_run
from swe_ai_fleet.agents.run_deps import RunContext, RunEnding, RunRecorder, short_limits
from swe_ai_fleet.agents.solving import policy_of
from swe_ai_fleet.agents.spec import AgentSpec, RunResources, run_agent
from swe_ai_fleet.agents.structured_output import AnswerForm, Questions, opening, schema_of
from swe_ai_fleet.agents.sub_agents.exploring import SPENT, answers_in, offered
from swe_ai_fleet.agents.toolbox import Toolbox, final_answer_in
from swe_ai_fleet.domain.assignment import ReviewAssignment, Subject
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errors import InvalidRequest, ModelError, NotFound, PatchRejected
from swe_ai_fleet.domain.message import Message, UserMessage
from swe_ai_fleet.domain.review import Review
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import Clone, EvidenceWorkspaces, SecretMask
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

MAX_DIFF_CHARS = 40_000
MAX_CHARS = 120_000
MAX_EVIDENCE_CHARS = 12_000
MAX_SUMMARY_CHARS = 4_000
MAX_TESTS_CHARS = 8_000
MAX_REVIEW_CHARS = 6_000
_LEAST_CHARS = 400
_SECOND_LOOK = (
    "Where a review of yours is shown, it is of what the same author had handed in before; what you see is what has "
    "been handed in since, and what the author says is the answer to you. For each of your findings: leave it out if "
    "it is fixed or if you were wrong, name it again if it still holds. Your new review takes the place of that one."
)
_SETTLED = "Nothing has changed since you reviewed it: do not review it again, but give it a place in your order."
_EARLIER = "Your earlier review:"
_LOOK_UP = "Look each up in the code. Where it is not met, a finding says so and names the place."
MAX_ITERATIONS = 8
MAX_TOOL_CALLS = 24
"""The limits of a review, which is short work; the limits of the task apply, too."""
LOOKING = (
    "files_read_file", "files_search_in_files", "files_list_files", "files_repo_map", "git_status", "git_diff",
    "git_log", "git_show",
)  # fmt: skip
RUNNING = ("files_read_file", "files_search_in_files", "tests_run", "shell_run_command")
"""The operations of reviewers who may run commands: their shell can do the rest. Their clone is thrown away."""
AGAIN = "That is not the review that was asked for: {problem}. Answer with that JSON object and nothing else."
_OBSERVATION_CHARS = 8_000
_FINAL_PROMPT_SECONDS = 30.0
_UNTOUCHED = "untouched"


def review_messages(
    assignment: ReviewAssignment,
    shown: Sequence[Subject],
    patches: Mapping[str, bytes],
    *,
    applied: Collection[str],
    may_run: bool,
    iterations: int,
    context_tokens: int,
    mask: SecretMask,
) -> tuple[Message, ...]:
    """The first messages of a review, cut to fit `context_tokens` (0: unknown).

    All reviewers of equally many candidates get the same system message.
    """
    task = assignment.task
    candidates = [subject.candidate for subject in shown]
    digests = sorted(
        candidate.artifacts.patch.digest for candidate in candidates if candidate.artifacts.patch is not None
    )
    fence = Fence(mask, task.execution_id, *sorted(candidate.candidate_id for candidate in candidates), *digests)
    # At about four characters a token: a quarter of the context for the diffs, half of that for the evidence.
    room = min(MAX_CHARS, MAX_DIFF_CHARS * len(shown), context_tokens or MAX_DIFF_CHARS)
    diffs = [
        "" if subject.settled else patches.get(subject.candidate.candidate_id, b"").decode("utf-8", "replace")
        for subject in shown
    ]
    shares = fair_shares([len(diff) for diff in diffs], room)
    part = max(_LEAST_CHARS, room // sum(not subject.settled for subject in shown))
    sections = [(title, mask(text)) for title, text in (*request_sections(task), *rule_sections(task))]
    if assignment.unshown:
        listed = "\n".join(f'- "{mask(requirement)}"' for requirement in assignment.unshown)
        sections.append(("Asked for, and shown by nothing that ran", f"{listed}\n{_LOOK_UP}"))
    for letter, subject, diff, share in zip(LETTERS, shown, diffs, shares, strict=False):
        lines = ["Its changes could not be applied to the clone."]
        if subject.candidate.candidate_id in applied:
            lines = [f"Its branch is {branch(letter)}."] if len(shown) > 1 else []
        lines += _settled(subject, fence) if subject.settled else _described(subject, diff, share, part, fence)
        sections.append((f"Candidate {letter}" if len(shown) > 1 else "The candidate", "\n".join(lines)))
    if any(subject.earlier is not None and not subject.settled for subject in shown):
        sections.append(("Your second look", _SECOND_LOOK))
    sections.append(("Your perspective", assignment.perspective.instructions))
    facts = {"several": len(shown) > 1, "may_run": may_run, "iterations": iterations}
    return opening("review", sections, warning=fence.warning, **facts)


def branch(letter: str) -> str:
    """The branch with a candidate's changes, in a clone with several candidates."""
    return f"candidate-{letter.lower()}"


def _described(subject: Subject, diff: str, share: int, part: int, fence: Fence) -> list[str]:
    candidate, report = subject.candidate, subject.report
    lines = [
        f"Its changes, {size_of(candidate.artifacts)}:",
        fence(diff, max(_LEAST_CHARS, share)),
        "What its author says of it:",
        fence(candidate.summary, min(MAX_SUMMARY_CHARS, part // 4)) or "Nothing.",
        "What the checks said:",
        evidence(report, fence, min(MAX_EVIDENCE_CHARS, part // 2)),
    ]
    if tests := changed_tests(report, fence, min(MAX_TESTS_CHARS, part // 4)):
        lines += ["Old tests that it changed, before and after:", tests]
    if subject.earlier is not None:
        lines += [_EARLIER, fence(critique_text(subject.earlier), MAX_REVIEW_CHARS)]
    return lines


def _settled(subject: Subject, fence: Fence) -> list[str]:
    earlier = fence(critique_text(subject.earlier), MAX_REVIEW_CHARS) if subject.earlier is not None else ""
    return [f"Its changes: {size_of(subject.candidate.artifacts)}.", _SETTLED, _EARLIER, earlier]


def size_of(artifacts: Artifacts) -> str:
    return f"{counted(len(artifacts.files_changed), 'file')}, {changed_lines(artifacts)}"


@dataclass(frozen=True, kw_only=True)
class ReviewRun:
    recorder: RunRecorder
    workspaces: EvidenceWorkspaces

    async def run(self, assignment: ReviewAssignment, clone: Clone) -> Review:
        """One peer's review, in a clean clone with the changes of one candidate, or with a branch for each of several.

        An unreadable answer, faults of the model and reached limits are critiques with an error. Raises as
        `RunRecorder.run` does.
        """
        return await self.recorder.run(assignment, clone, lambda run: _Reviewer(assignment, clone, run, self).work())


class _Reviewer(AgentSpec[ReviewAnswer]):
    """One review in progress. Changes in its clone are not kept: each process of the run sets the clone up anew."""

    def __init__(self, assignment: ReviewAssignment, clone: Clone, run: RunContext, reviews: ReviewRun) -> None:
        task = assignment.task
        limits = short_limits(task.constraints.limits)
        limits = replace(
            limits,
            max_iterations=min(MAX_ITERATIONS, limits.max_iterations),
            max_tool_calls=min(MAX_TOOL_CALLS, limits.max_tool_calls),
        )
        super().__init__(
            task=task,
            budget=Budget(limits, spent=run.earlier.usage),
            policy=policy_of(task),
            perspective=assignment.perspective,
            observation_chars=_OBSERVATION_CHARS,
            environment=clone.environment.key,
            lasting=False,
        )
        self._assignment, self._clone, self._run = assignment, clone, run
        self._proving = Proving(
            assignment=assignment,
            workspaces=reviews.workspaces,
            blobs=reviews.recorder.blobs,
            environment=clone.environment,
            mask=run.deps.mask,
        )
        self._may_run = may_run(task, self.policy)
        self._stop = StopReason.MODEL_ERROR
        by_id = {subject.candidate.candidate_id: subject for subject in assignment.subjects}
        self._shown = [by_id[name] for name in ballot_order(list(by_id), assignment.seed, sample=1)]
        self._schema = schema_of(answer_shape(self._shown))
        self._patches: Mapping[str, bytes] = {}
        self._applied = frozenset[str]()

    async def work(self) -> RunEnding[Review]:
        assignment, subjects, mask = self._assignment, self._shown, self._run.deps.mask
        error = ""
        try:
            answer = await run_agent(self, self._run)
        except (ModelError, InvalidRequest, NotFound, ValueError) as fault:
            review = no_review(assignment, subjects, str(fault), mask=mask, usage=self.budget.total())
            error = review.critiques[0].error
        else:
            self._stop = StopReason.FINAL_ANSWER
            tree = Tree(self._clone.root, self._clone.mount)
            review = await asyncio.to_thread(
                review_of, answer, assignment, subjects, tree=tree, mask=mask, usage=self.budget.total()
            )
            review = await self._proving.run(review) if self._may_run else review
        return RunEnding(value=review, stop_reason=self._stop, usage=self.budget.total(), error=error)

    @asynccontextmanager
    async def tools(self, resources: RunResources) -> AsyncGenerator[Toolbox]:
        """The read-only operations that the task allows its agents; with a shell, if reviewers may run commands."""
        self._patches = {
            subject.candidate.candidate_id: await self._proving.blobs.get(ref)
            for subject in self._shown
            if (ref := subject.candidate.artifacts.patch) is not None
        }
        self._applied = await self._apply(self._patches)
        clone, pipeline = self._clone, resources.pipeline
        kits: dict[str, Toolkit] = {kit.name: kit for kit in (FileTool(clone, pipeline), GitTool(clone, pipeline))}
        if self._may_run:
            kits |= {kit.name: kit for kit in (TestTool(clone, pipeline), ShellTool(clone, pipeline))}
        names = offered(kits, pipeline, RUNNING if self._may_run else LOOKING, read_only=not self._may_run)
        narrow = pipeline.under(replace(pipeline.policy, allowed=frozenset(names)))
        # An empty set would allow everything.
        yield Toolbox(kits if names else {}, narrow, answer=final_answer_in(self._schema))

    async def opening(self, resources: RunResources, toolbox: Toolbox) -> tuple[Message, ...]:
        return review_messages(
            self._assignment,
            self._shown,
            self._patches,
            applied=self._applied,
            may_run=self._may_run,
            iterations=self.budget.limits.max_iterations,
            context_tokens=resources.capabilities.max_model_len,
            mask=self._run.deps.mask,
        )

    async def read(self, parts: RunParts, trajectory: Trajectory) -> ReviewAnswer:
        """The reviewer's answer. Raises ValueError with the reason if there is no usable one, ModelError."""
        self._stop = trajectory.stop_reason
        try:
            return read_answer(self._shown, *answers_in(trajectory))
        except ValueError as error:
            if trajectory.stop_reason in SPENT or not trajectory.steps:
                raise ValueError(trajectory.error or str(error)) from None
            again = UserMessage(content=AGAIN.format(problem=error))
        questions = Questions(parts.model, parts.budget, parts.journal, step=len(trajectory.steps))
        questions.add(again)
        parts.history.add(again)
        form = AnswerForm(schema=self._schema, read=lambda texts: read_answer(self._shown, *texts), attempts=1)
        try:
            async with parts.budget.time_limit(_FINAL_PROMPT_SECONDS):
                return await questions.answer(parts.history.messages, form, parts.affordable())
        except TimeoutError:
            raise ValueError("the reviewer did not answer in time") from None
        except ValueError as error:
            raise ValueError(f"the reviewer answered twice in a form that cannot be used: {error}") from None

    async def _apply(self, patches: Mapping[str, bytes]) -> frozenset[str]:
        """Apply one patch, or commit each of several to its own branch and check out the first; the ids applied."""
        applied: list[str] = []
        several = len(self._shown) > 1
        if several:
            await self._clone.apply(b"", branch=_UNTOUCHED)
        for letter, subject in reversed(list(zip(LETTERS, self._shown, strict=False))):
            name = subject.candidate.candidate_id
            try:
                await self._clone.apply(patches.get(name, b""), branch=branch(letter) if several else "")
            except PatchRejected:
                continue
            applied.append(name)
        return frozenset(applied)
