"""A fleet that does what it is told: agents without models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar, cast

from swe_ai_fleet.agents.recorded_run import writer_of
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest
from swe_ai_fleet.domain.assignment import (
    Answer,
    AnswerAssignment,
    Assignment,
    BaselineAssignment,
    CheckAssignment,
    CodingAssignment,
    DeriveAssignment,
    ExamineAssignment,
    JudgeAssignment,
    OperateAssignment,
    RecordedAssignment,
    ReviewAssignment,
    ScoreAssignment,
    Subject,
)
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.errors import AgentLost, FleetError
from swe_ai_fleet.domain.event import (
    ApprovalRequested,
    ModelReplied,
    RunClaimed,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolStarted,
    WorkspaceCheckpointed,
)
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.message import AssistantMessage, ModelCapabilities, ModelReply, ModelRequest, ToolCall
from swe_ai_fleet.domain.review import Critique, Review, ReviewVerdict, VerifierScore, Vote
from swe_ai_fleet.domain.run import RunState, fold_run
from swe_ai_fleet.domain.subtask import Derivation, Subtask
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.domain.test_run import Baseline
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.evidence import verdict_of
from swe_ai_fleet.ports import BlobStore, EventLog, Journal
from tests.scripted_workspaces import DELIVERED_COMMIT

PASSED = CheckResult(
    kind=CheckKind.DRY_RUN,
    name="tests",
    passed=True,
    score=1.0,
    message="1 passed, no test fails without the change",
    output="1 passed",
    exit_code=0,
)
PROVEN = replace(PASSED, message="1 test fails without the change and passes with it", shown=("tests::test_it",))
FAILED = CheckResult(
    kind=CheckKind.DRY_RUN, name="tests", passed=False, output="1 failed", exit_code=1, message="exit code 1"
)


def _report(assignment: CheckAssignment, results: Sequence[CheckResult]) -> CheckReport:
    """Evidence as it is judged for real."""
    verdict, reasons = verdict_of(results)
    return CheckReport(candidate_id=assignment.candidate_id, results=tuple(results), verdict=verdict, reasons=reasons)


class Storage(EventLog, BlobStore, Protocol):
    """Where scripted agents write their events and patches."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRun:
    """What one agent does. Without a patch of its own, it hands in one that nobody else has.

    Args:
        patch: The diff it leaves; None: one made of its name, empty: nothing changed.
        checks: What the evidence about its candidate says.
        check_fault: Raised instead of evidence.
        fault: Raised instead of a candidate, such as AgentLost.
        after: The run ends only when this is set; one that never is makes it hang until it is cancelled.
        operations: How many tool operations it carries out first.
        lost: How many processes die under it, each with a step done.
        asks: How often it waits for a person; a rejection ends it.
        approval_seconds: How long it lets them decide; 0: for ever.
    """

    patch: bytes | None = None
    checks: tuple[CheckResult, ...] = (PASSED,)
    check_fault: FleetError | None = None
    fault: FleetError | None = None
    after: asyncio.Event | None = None
    operations: int = 1
    lost: int = 0
    asks: int = 0
    approval_seconds: float = 0.0
    summary: str = "done"
    error: str = ""
    stop_reason: StopReason = StopReason.FINAL_ANSWER
    insertions: int = 1
    tokens: int = 100


@dataclass(kw_only=True)
class ScriptedModel:
    """A `ChatModel` that is there, or not: `fault` is what asking it raises. Agents of a `ScriptedFleet` need none."""

    fault: FleetError | None = None

    async def probe(self) -> ModelCapabilities:
        await self.ping()
        return ModelCapabilities(model="scripted")

    async def ping(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def reply(self, request: ModelRequest) -> ModelReply:
        await self.ping()
        return ModelReply(message=AssistantMessage(content="Done."), finish_reason="stop", usage=Usage())


def _accepts(assignment: ReviewAssignment, subject: Subject) -> Critique:
    return Critique(
        reviewer_id=assignment.reviewer_id,
        candidate_id=subject.candidate.candidate_id,
        round=assignment.round,
        verdict=ReviewVerdict.ACCEPT,
        score=1.0,
        content="fine",
        usage=Usage(model_calls=1),
        at=now(),
    )


@dataclass(kw_only=True)
class ScriptedFleet:
    """A `Fleet` whose agents follow a script; they write the events that real ones write.

    Args:
        storage: Receives events and patches.
        runs: What each agent does, by its id; the others follow `default`.
        delivered: What the evidence about a delivered branch says.
        examining: What the candidates' tests say of each other's sources; without it, nothing.
        reviewing: What a peer says of a candidate; without it, everybody accepts everything. It votes for the one with
            the highest score among those that it accepts, the first of these.
        orders: Whether reviewers of several candidates say which one they would apply.
        judging: How a judge votes; without it, for the first candidate shown.
        scoring: What a verifier model says of a candidate; without it, 0.5.
        deriving: How a planner splits a task; without it, not at all.
        answering: What an agent answers; without it, "done".
        operating: What a tool gives; without it, nothing but success.
    """

    storage: Storage
    runs: Mapping[str, ScriptedRun] = field(default_factory=dict[str, ScriptedRun])
    default: ScriptedRun = field(default_factory=ScriptedRun)
    delivered: Sequence[CheckResult] = (PASSED,)
    begun: list[CodingAssignment] = field(default_factory=list[CodingAssignment])
    cancelled: list[str] = field(default_factory=list[str])
    checked: list[CheckAssignment] = field(default_factory=list[CheckAssignment])
    examined: list[ExamineAssignment] = field(default_factory=list[ExamineAssignment])
    examining: Callable[[ExamineAssignment], Examination] | None = None
    reviewing: Callable[[ReviewAssignment, Subject], Critique] | None = None
    orders: bool = True
    judging: Callable[[JudgeAssignment], tuple[Vote, ...]] | None = None
    scoring: Callable[[ScoreAssignment], VerifierScore] | None = None
    deriving: Callable[[DeriveAssignment], Derivation] | None = None
    answering: Callable[[AnswerAssignment], Awaitable[Answer]] | None = None
    operating: Callable[[OperateAssignment], Awaitable[ToolResult]] | None = None
    reviewed: list[ReviewAssignment] = field(default_factory=list[ReviewAssignment])
    judged: list[JudgeAssignment] = field(default_factory=list[JudgeAssignment])
    scored: list[ScoreAssignment] = field(default_factory=list[ScoreAssignment])
    derived: list[DeriveAssignment] = field(default_factory=list[DeriveAssignment])
    asked: list[AnswerAssignment] = field(default_factory=list[AnswerAssignment])
    operated: list[OperateAssignment] = field(default_factory=list[OperateAssignment])
    _authors: dict[str, str] = field(default_factory=dict[str, str])
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def started(self, count: int) -> None:
        """Wait until so many runs have begun in all."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.begun) >= count)

    async def run(self, assignment: Assignment[T]) -> T:
        """Carry out one assignment as its script says. Raises the script's fault."""
        return cast("T", await self._value_of(assignment))

    async def _value_of(self, assignment: Assignment[object]) -> object:
        match assignment:
            case CodingAssignment():
                return await self._run(assignment)
            case BaselineAssignment():
                return Baseline(commit=assignment.repository.commit)
            case CheckAssignment():
                return self._check(assignment)
            case ExamineAssignment():
                self.examined.append(assignment)
                return self.examining(assignment) if self.examining is not None else Examination()
            case ReviewAssignment():
                return self._review(assignment)
            case JudgeAssignment():
                return self._judge(assignment)
            case ScoreAssignment():
                return await self._score(assignment)
            case DeriveAssignment():
                return await self._derive(assignment)
            case AnswerAssignment():
                return await self._answer(assignment)
            case OperateAssignment():
                return await self._operate(assignment)
            case _:
                raise TypeError(f"no script for {type(assignment).__name__}")

    async def _run(self, assignment: CodingAssignment) -> Candidate:
        """Carry out one scripted run. Raises the script's fault."""
        self._authors[assignment.agent_id] = assignment.author_id or assignment.agent_id
        script = self._script(assignment.agent_id)
        async with self.storage.journal(writer_of(assignment)) as journal:
            await journal.append(
                RunClaimed(generation=assignment.generation, host="scripted", resumes=assignment.resume)
            )
            earlier = await self._earlier(assignment)
            if earlier.started is None:
                started = RunStarted(
                    role=assignment.task.role, model="scripted", messages=(), tools=("files_write_file",)
                )
                await journal.append(started)
                head = await _operate(assignment, script.operations, journal)
            else:
                head = await _interrupt(earlier, journal)
            async with self._news:
                self.begun.append(assignment)
                self._news.notify_all()
            try:
                if script.after is not None:
                    await script.after.wait()
            except asyncio.CancelledError:
                self.cancelled.append(assignment.agent_id)
                raise
            if script.fault is not None:
                raise script.fault
            if sum(one.agent_id == assignment.agent_id for one in self.begun) <= script.lost:
                raise AgentLost("its host died")
            if any(one.decision is ApprovalDecision.REJECTED for one in earlier.resolutions.values()):
                script = replace(script, stop_reason=StopReason.REJECTED, patch=b"", summary="", error="rejected")
            elif len(earlier.requests) < script.asks:
                await _ask(assignment, script, len(earlier.requests) + 1, journal)
                return self._candidate(assignment, replace(script, stop_reason=StopReason.AWAITING_APPROVAL), head)
            return await self._hand_in(assignment, script, head, journal)

    def _check(self, assignment: CheckAssignment) -> CheckReport:
        """The evidence that the script says. Raises the script's fault."""
        self.checked.append(assignment)
        if assignment.patch is None and assignment.repository.commit == DELIVERED_COMMIT:
            return _report(assignment, self.delivered)
        script = self._script(assignment.candidate_id)
        if script.check_fault is not None:
            raise script.check_fault
        return _report(assignment, script.checks)

    def _script(self, agent_id: str) -> ScriptedRun:
        """What a run does; a revision without a script of its own does as its author did."""
        author = self._authors.get(agent_id, agent_id)
        return self.runs.get(agent_id) or self.runs.get(author, self.default)

    def _review(self, assignment: ReviewAssignment) -> Review:
        """What the script's reviewer says."""
        self.reviewed.append(assignment)
        say = self.reviewing or _accepts
        said = {
            subject.candidate.candidate_id: subject.earlier
            if subject.settled and subject.earlier is not None
            else say(assignment, subject)
            for subject in assignment.subjects
        }
        asked = [subject.candidate.candidate_id for subject in assignment.subjects if not subject.settled]
        if len(said) < 2:
            return Review(critiques=tuple(said[name] for name in asked))
        names = tuple(sorted(said))
        best = max(names, key=lambda name: (not said[name].objects, said[name].score, -names.index(name)))
        vote = Vote(judge_id=assignment.reviewer_id, sample=1, order=names, choice=best, reason="the best score")
        if not self.orders:
            vote = replace(vote, choice="", error="it named no order")
        return Review(critiques=tuple(said[name] for name in asked), vote=vote)

    def _judge(self, assignment: JudgeAssignment) -> tuple[Vote, ...]:
        """How the script's judge votes."""
        self.judged.append(assignment)
        if self.judging is not None:
            return self.judging(assignment)
        order = tuple(one.candidate_id for one in assignment.candidates)
        return tuple(
            Vote(judge_id=assignment.judge_id, sample=sample, order=order, choice=order[0], reason="the first")
            for sample in range(assignment.known + 1, assignment.known + assignment.samples + 1)
        )

    async def _score(self, assignment: ScoreAssignment) -> VerifierScore:
        """What the script's verifier model says."""
        async with self._recorded(assignment) as journal:
            self.scored.append(assignment)
            usage = Usage(prompt_tokens=9, completion_tokens=1, model_calls=1)
            score = VerifierScore(
                candidate_id=assignment.candidate.candidate_id, raw=0.5, model="scripted", usage=usage
            )
            if self.scoring is not None:
                score = self.scoring(assignment)
            ended = RunFinished(
                stop_reason=StopReason.FINAL_ANSWER, artifacts=Artifacts(), usage=score.usage, audit_head=GENESIS
            )
            await journal.append(ended)
            return score

    async def _derive(self, assignment: DeriveAssignment) -> Derivation:
        """How the script's planner splits a task."""
        self.derived.append(assignment)
        if self.deriving is not None:
            return self.deriving(assignment)
        only = Subtask(subtask_id="all", description=assignment.task.description, role=assignment.task.role)
        return Derivation(derivation_id="scripted", subtasks=(only,))

    async def _answer(self, assignment: AnswerAssignment) -> Answer:
        """What the script's agent answers."""
        async with self._recorded(assignment) as journal:
            self.asked.append(assignment)
            answer = Answer(text="done", stop_reason=StopReason.FINAL_ANSWER, usage=Usage(model_calls=1))
            if self.answering is not None:
                answer = await self.answering(assignment)
            await journal.append(
                RunFinished(
                    stop_reason=answer.stop_reason, artifacts=Artifacts(), usage=answer.usage, audit_head=GENESIS
                )
            )
            return answer

    async def _operate(self, assignment: OperateAssignment) -> ToolResult:
        """What the script's tool gives."""
        async with self._recorded(assignment):
            self.operated.append(assignment)
            if self.operating is not None:
                return await self.operating(assignment)
            return ToolResult(success=True, operation=assignment.tool)

    @asynccontextmanager
    async def _recorded(self, assignment: RecordedAssignment[object]) -> AsyncGenerator[Journal]:
        """A run of its own in the log."""
        async with self.storage.journal(writer_of(assignment)) as journal:
            resumes = assignment.generation > 1
            await journal.append(RunClaimed(generation=assignment.generation, host="scripted", resumes=resumes))
            yield journal

    async def _hand_in(
        self, assignment: CodingAssignment, script: ScriptedRun, head: str, journal: Journal
    ) -> Candidate:
        patch = f"diff of {assignment.agent_id}\n".encode() if script.patch is None else script.patch
        ref = None
        if patch:
            ref = await self.storage.put(assignment.task.tenant, assignment.execution_id, patch, "text/x-diff")
        artifacts = Artifacts(patch=ref, files_changed=("app.py",) if ref else (), insertions=script.insertions)
        usage = Usage(
            prompt_tokens=script.tokens, completion_tokens=1, model_calls=1, tool_calls=script.operations, duration_ms=1
        )
        finished = RunFinished(
            stop_reason=script.stop_reason, artifacts=artifacts, usage=usage, audit_head=head, answer=script.summary
        )
        await journal.append(finished)
        return replace(self._candidate(assignment, script, head), artifacts=artifacts, usage=usage)

    async def _earlier(self, assignment: CodingAssignment) -> RunState:
        task = assignment.task
        async with aclosing(self.storage.read(task.tenant, assignment.execution_id)) as events:
            return fold_run([stored.event async for stored in events], assignment.agent_id)

    def _candidate(self, assignment: CodingAssignment, script: ScriptedRun, head: str) -> Candidate:
        return Candidate(
            candidate_id=assignment.agent_id,
            agent_id=assignment.agent_id,
            role=assignment.task.role,
            summary=script.summary,
            stop_reason=script.stop_reason,
            artifacts=Artifacts(),
            usage=Usage(),
            audit_head=head,
            submitted_at=now(),
            model="scripted",
            error=script.error,
            author_id=assignment.author_id,
            round=assignment.revision.round if assignment.revision else 0,
            revises=assignment.revision.candidate.candidate_id if assignment.revision else "",
        )


async def _ask(assignment: CodingAssignment, script: ScriptedRun, number: int, journal: Journal) -> None:
    """Ask for approval of a plan, the workspace kept first."""
    commit = assignment.repository.commit
    asked_at = datetime.now(UTC)
    expires = asked_at + timedelta(seconds=script.approval_seconds)
    request = ApprovalRequest(
        approval_id=f"{assignment.agent_id}.{number}",
        agent_id=assignment.agent_id,
        policy=ApprovalPolicy.PLAN,
        goal=assignment.task.description,
        approach=f"plan {number}",
        call=ToolCall(call_id=str(number), model_call_id=str(number), name="propose_approach", arguments="{}"),
        step=number,
        requested_at=asked_at.isoformat(),
        expires_at=expires.isoformat() if script.approval_seconds else "",
    )
    await journal.append(WorkspaceCheckpointed(step=number, revision=1, commit=commit, head=commit))
    await journal.append(ApprovalRequested(request=request))


async def _interrupt(earlier: RunState, journal: Journal) -> str:
    """Record that nobody knows how the operation ended at which an earlier process died; the audit chain's head."""
    last = earlier.entries[-1] if earlier.entries else None
    if last is None or last.outcome is not Outcome.STARTED:
        return last.hash if last is not None else GENESIS
    entry = replace(last, seq=last.seq + 1, at=now(), outcome=Outcome.INTERRUPTED).sealed(last.hash)
    result = ToolResult(success=False, operation=last.operation, error="its process died", outcome=Outcome.INTERRUPTED)
    await journal.append(ToolFinished(entry=entry, result=result))
    return entry.hash


async def _operate(assignment: CodingAssignment, count: int, journal: Journal) -> str:
    """So many writes, one a step, audited; the head of the audit chain."""
    head = GENESIS
    for number in range(1, count + 1):
        message = AssistantMessage(content=f"step {number}")
        reply = ModelReply(message=message, finish_reason="tool_calls", usage=Usage(model_calls=1))
        await journal.append(ModelReplied(step=number, reply=reply, duration_ms=1))
        for outcome in (Outcome.STARTED, Outcome.SUCCESS):
            entry = AuditEntry(
                seq=2 * number - (outcome is Outcome.STARTED),
                at=now(),
                execution_id=assignment.execution_id,
                agent_id=assignment.agent_id,
                call_id=f"call-{number}",
                tool="files",
                operation="write_file",
                arguments={"path": f"file-{number}.py", "lines": number},
                outcome=outcome,
            ).sealed(head)
            head = entry.hash
            if outcome is Outcome.STARTED:
                await journal.append(ToolStarted(entry=entry))
            else:
                written = ToolResult(success=True, operation="write_file", content=f"wrote file-{number}.py")
                await journal.append(ToolFinished(entry=entry, result=written))
    return head
