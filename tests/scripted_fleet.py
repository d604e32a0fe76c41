"""A fleet that does what it is told: agents without models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar, cast

from swe_ai_fleet.agents.recorded_run import writer_of
from swe_ai_fleet.domain import event as ev
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
    ReviewAssignment,
    ScoreAssignment,
    Subject,
)
from swe_ai_fleet.domain.audit import GENESIS
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.errors import AgentLost, FleetError
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
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.evidence import verdict_of
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps
from swe_ai_fleet.ports import BlobStore, EventLog, Journal
from tests.candidates import AuditChain, a_candidate
from tests.scripted_workspaces import DELIVERED_COMMIT, ScriptedWorkspaces

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


def _first(assignment: JudgeAssignment) -> tuple[Vote, ...]:
    order = tuple(one.candidate_id for one in assignment.candidates)
    return tuple(
        Vote(judge_id=assignment.judge_id, sample=sample, order=order, choice=order[0], reason="the first")
        for sample in range(assignment.known + 1, assignment.known + assignment.samples + 1)
    )


def _whole(assignment: DeriveAssignment) -> Derivation:
    only = Subtask(subtask_id="all", description=assignment.task.description, role=assignment.task.role)
    return Derivation(derivation_id="scripted", subtasks=(only,))


def _half(assignment: ScoreAssignment) -> VerifierScore:
    usage = Usage(prompt_tokens=9, completion_tokens=1, model_calls=1)
    return VerifierScore(candidate_id=assignment.candidate.candidate_id, raw=0.5, model="scripted", usage=usage)


async def _done(_: AnswerAssignment) -> Answer:
    return Answer(text="done", stop_reason=StopReason.FINAL_ANSWER, usage=Usage(model_calls=1))


def _accepts(assignment: ReviewAssignment, subject: Subject) -> Critique:
    who = {"reviewer_id": assignment.reviewer_id, "candidate_id": subject.candidate.candidate_id}
    verdict = {"verdict": ReviewVerdict.ACCEPT, "score": 1.0, "content": "fine"}
    return Critique(**who, **verdict, round=assignment.round, usage=Usage(model_calls=1), at=now())


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
                self.judged.append(assignment)
                return (self.judging or _first)(assignment)
            case DeriveAssignment():
                return await self._derive(assignment)
            case ScoreAssignment() | AnswerAssignment() | OperateAssignment():
                return await self._recorded(assignment)
            case _:
                raise TypeError(f"no script for {type(assignment).__name__}")

    async def _run(self, assignment: CodingAssignment) -> Candidate:
        self._authors[assignment.agent_id] = assignment.author_id or assignment.agent_id
        script = self._script(assignment.agent_id)
        async with self.storage.journal(writer_of(assignment)) as journal:
            claim = {"generation": assignment.generation, "resumes": assignment.resume}
            await journal.append(ev.RunClaimed(host="scripted", **claim))
            async with aclosing(self.storage.read(assignment.task.tenant, assignment.execution_id)) as events:
                earlier = fold_run([stored.event async for stored in events], assignment.agent_id)
            if earlier.started is None:
                tools = ("files_write_file",)
                await journal.append(
                    ev.RunStarted(role=assignment.task.role, model="scripted", messages=(), tools=tools)
                )
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

    async def _derive(self, assignment: DeriveAssignment) -> Derivation:
        self.derived.append(assignment)
        return (self.deriving or _whole)(assignment)

    async def _recorded(self, assignment: ScoreAssignment | AnswerAssignment | OperateAssignment) -> object:
        """A run of its own in the log, and what the script's verifier model, agent or tool says."""
        async with self.storage.journal(writer_of(assignment)) as journal:
            resumes = assignment.generation > 1
            await journal.append(ev.RunClaimed(generation=assignment.generation, host="scripted", resumes=resumes))
            match assignment:
                case OperateAssignment():
                    self.operated.append(assignment)
                    if self.operating is not None:
                        return await self.operating(assignment)
                    return ToolResult(success=True, operation=assignment.tool)
                case ScoreAssignment():
                    self.scored.append(assignment)
                    value = (self.scoring or _half)(assignment)
                    stop_reason = StopReason.FINAL_ANSWER
                case AnswerAssignment():
                    self.asked.append(assignment)
                    value = await (self.answering or _done)(assignment)
                    stop_reason = value.stop_reason
            ended = {"stop_reason": stop_reason, "usage": value.usage, "audit_head": GENESIS}
            await journal.append(ev.RunFinished(artifacts=Artifacts(), **ended))
            return value

    async def _hand_in(
        self, assignment: CodingAssignment, script: ScriptedRun, head: str, journal: Journal
    ) -> Candidate:
        patch = f"diff of {assignment.agent_id}\n".encode() if script.patch is None else script.patch
        ref = None
        if patch:
            ref = await self.storage.put(assignment.task.tenant, assignment.execution_id, patch, "text/x-diff")
        artifacts = Artifacts(patch=ref, files_changed=("app.py",) if ref else (), insertions=script.insertions)
        counts = {"prompt_tokens": script.tokens, "completion_tokens": 1, "tool_calls": script.operations}
        usage = Usage(model_calls=1, duration_ms=1, **counts)
        ended = {"stop_reason": script.stop_reason, "answer": script.summary}
        await journal.append(ev.RunFinished(artifacts=artifacts, usage=usage, audit_head=head, **ended))
        return replace(self._candidate(assignment, script, head), artifacts=artifacts, usage=usage)

    def _candidate(self, assignment: CodingAssignment, script: ScriptedRun, head: str) -> Candidate:
        revision = assignment.revision
        revises = {"round": revision.round, "revises": revision.candidate.candidate_id} if revision else {}
        ended = {"stop_reason": script.stop_reason, "summary": script.summary, "error": script.error}
        made = {"artifacts": Artifacts(), "audit_head": head, "submitted_at": now(), "model": "scripted"}
        return a_candidate(
            assignment.agent_id, role=assignment.task.role, author_id=assignment.author_id, **made, **ended, **revises
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
    await journal.append(ev.WorkspaceCheckpointed(step=number, revision=1, commit=commit, head=commit))
    await journal.append(ev.ApprovalRequested(request=request))


async def _interrupt(earlier: RunState, journal: Journal) -> str:
    """Record that nobody knows how the operation ended at which an earlier process died; the audit chain's head."""
    last = earlier.entries[-1] if earlier.entries else None
    if last is None or last.outcome is not Outcome.STARTED:
        return last.hash if last is not None else GENESIS
    entry = replace(last, seq=last.seq + 1, at=now(), outcome=Outcome.INTERRUPTED).sealed(last.hash)
    result = ToolResult(success=False, operation=last.operation, error="its process died", outcome=Outcome.INTERRUPTED)
    await journal.append(ev.ToolFinished(entry=entry, result=result))
    return entry.hash


async def _operate(assignment: CodingAssignment, count: int, journal: Journal) -> str:
    """So many writes, one a step, audited; the head of the audit chain."""
    chain = AuditChain()
    called = {"execution_id": assignment.execution_id, "agent_id": assignment.agent_id, "tool": "files"}
    for number in range(1, count + 1):
        message = AssistantMessage(content=f"step {number}")
        reply = ModelReply(message=message, finish_reason="tool_calls", usage=Usage(model_calls=1))
        await journal.append(ev.ModelReplied(step=number, reply=reply, duration_ms=1))
        written = ToolResult(success=True, operation="write_file", content=f"wrote file-{number}.py")
        made = {"call_id": f"call-{number}", "arguments": {"path": f"file-{number}.py", "lines": number}, "at": now()}
        for body in chain.call(written, operation="write_file", **called, **made):
            await journal.append(body)
    return chain.head


def execution_deps(log: Any = None, **given: Any) -> ExecutionDeps:
    """ExecutionDeps over one log, for events, blobs and results."""
    log = log or MemoryLog()
    around: dict[str, Any] = {"model": ScriptedModel(), "owner": "test", "pauses": (0.0,), **given}
    around.setdefault("workspaces", ScriptedWorkspaces())
    fleet = around.pop("fleet", None) or ScriptedFleet(storage=log)
    return ExecutionDeps(log=log, blobs=log, results=log, fleet=fleet, **around)
