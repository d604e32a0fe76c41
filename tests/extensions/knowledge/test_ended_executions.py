"""What an execution leaves when it has ended: the record of its work, its outcome, its lessons."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swe_ai_fleet.adapters.jetstream import WorkMessage
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import (
    Artifacts,
    CheckKind,
    CheckReport,
    CheckResult,
    Delivered,
    RankedCandidate,
    Verdict,
)
from swe_ai_fleet.domain.candidate import TestSummary as Summary
from swe_ai_fleet.domain.context import WorkRecord
from swe_ai_fleet.domain.memory import MAX_MEMORY_CHARS, VERDICT, Memory, MemoryKind, WorkOutcome, repository_namespace
from swe_ai_fleet.domain.task import MemoryOptions, PinnedRepository, PlanningMode, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.extensions.knowledge.recorder import Recorder
from swe_ai_fleet.extensions.knowledge.store import ContextStore
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.testing.memory_stores import MemoryChanges, MemoryKeyValue
from swe_ai_fleet.tools.secrets import Secrets
from tests.candidates import a_candidate
from tests.memory_parts import Kept

COMMIT = "c" * 40
LOCATION = "https://ana:secret@example.org/billing.git"
MAX_FACTS, MAX_FACT_CHARS = 10, 1_000
TASK = Task(
    task_id="T-1",
    kind=TaskKind.ORCHESTRATE,
    description="Repair  the\nparser.",
    repo=RepoRef(location=LOCATION),
    role=Role.QA,
    case_id="C-1",
    story_id="S-1",
    plan_id="P-1",
    planning_mode=PlanningMode.HYBRID,
    memory=MemoryOptions(write=True),
)
TESTS, FAILING = Summary(passed=3), Summary(passed=2, failed=1, failing=("test_half",))
Said = tuple[str, ev.EventBody]


@dataclass
class Left:
    """What was kept of one execution."""

    work: WorkRecord
    outcome: WorkOutcome
    memories: list[Memory] = field(default_factory=list[Memory])

    @property
    def facts(self) -> list[str]:
        return [one.text for one in self.memories if one.kind is MemoryKind.FACT]


async def left(*said: Said, task: Task = TASK, end: ev.ExecutionFinished) -> Left:
    """What the recorder keeps once this was said, by agents or (`_`) of the whole."""
    log, memories = MemoryLog(), Kept()
    pinned = PinnedRepository(tenant=task.tenant, location=LOCATION, commit="b" * 40)
    started = ev.ExecutionStarted(task=task, repository=pinned, fingerprint="f")
    async with (
        ContextStore(MemoryChanges(), mask=Secrets()) as store,
        LearningTracker(MemoryKeyValue(), mask=Secrets()) as outcomes,
    ):
        for agent, body in (("_", started), *said, ("_", end)):
            writer = ev.Writer(tenant=task.tenant, execution_id=task.execution_id, task_id=task.task_id, agent_id=agent)
            last = await log.tell(writer, body)
        recorder = Recorder(log=log, store=store, outcomes=outcomes, memories=memories)  # type: ignore[arg-type]
        await recorder.handle(WorkMessage(subject="", data=to_json(last.event), headers={}, sequence=1, deliveries=1))
        known = store.graph(task.tenant).execution(task.execution_id)
        assert known is not None
        ended_at = last.event.at
        assert (known.record.ended_at, {one.created_at for one in memories.memories} <= {ended_at}) == (ended_at, True)
        return Left(
            work=replace(known.record, ended_at=""),
            outcome=replace(await outcomes.get(task.tenant, task.execution_id), ended_at=""),
            memories=[replace(one, created_at="") for one in memories.memories],
        )


def called(agent: str, operation: str, tool: str = "x", **metadata: object) -> Said:
    entry = AuditEntry(seq=1, at="", execution_id="e", agent_id=agent, call_id="1", tool=tool, operation=operation)
    return agent, ev.ToolFinished(entry=entry, result=ToolResult(success=True, operation=operation, metadata=metadata))


def noted(agent: str, fact: object) -> Said:
    return called(agent, "remember", "remembering", remembered=fact)


def submitted(name: str, *files: str, **fields: object) -> Said:
    made = Artifacts(files_changed=files, tests=Summary(passed=99), insertions=12, deletions=3)
    base = a_candidate(name, role=Role.QA, summary=f"I did it the way of {name}.", artifacts=made, model="m")
    return "_", ev.CandidateSubmitted(candidate=replace(base, **fields))  # type: ignore[arg-type]


def checked(name: str, tests: Summary | None = None, *, passed: bool = True, verdict: Verdict | None = None) -> Said:
    problems = () if passed else ("test_round failed: 2 != 3",)
    results = (
        CheckResult(kind=CheckKind.LINT, name="lint", passed=True),
        CheckResult(kind=CheckKind.COMMAND, name="tests", passed=passed, tests=tests, problems=problems),
        CheckResult(kind=CheckKind.DRY_RUN, name="build", passed=False, skipped_reason="none"),
    )
    return "_", ev.ChecksFinished(report=CheckReport(candidate_id=name, results=results, verdict=verdict))


def ranked(*names: str, winner: str = "") -> Said:
    ranking = tuple(
        RankedCandidate(candidate_id=name, rank=at, score=1 / at, accepted=name == winner)
        for at, name in enumerate(names, 1)
    )
    return "_", ev.CandidatesRanked(ranking=ranking, winner_id=winner)


def ended(
    status: ev.ExecutionStatus = ev.ExecutionStatus.COMPLETED, winner: str = "", error: str = ""
) -> ev.ExecutionFinished:
    return ev.ExecutionFinished(
        status=status, winner_id=winner, error=error, usage=Usage(prompt_tokens=10), duration_ms=700
    )


async def test_a_delivery_leaves_what_the_winner_did_how_it_went_and_what_it_noted() -> None:
    delivered = Delivered(commit_sha=COMMIT, branch="fleet/T-1")
    found = await left(
        called("a", "search_memory"),
        called("a", "web_search"),
        called("a", "edit_file", "files"),
        called("b", "edit_file", "files"),
        *(noted("a", "Tests need Redis.") for _ in range(2)),
        noted("b", "Everything is broken."),
        submitted("a", "src/a.py"),
        submitted("b", "src/b.py"),
        checked("a", TESTS, verdict=Verdict.VERIFIED),
        checked("b", FAILING, passed=False, verdict=Verdict.REFUTED),
        ranked("a", "b", winner="a"),
        ("_", ev.WinnerDelivered(delivered=delivered, report=CheckReport(candidate_id="a", verdict=Verdict.VERIFIED))),
        end=ended(winner="a"),
    )
    assert found.work == WorkRecord(
        execution_id=TASK.execution_id,
        task_id="T-1",
        story_id="S-1",
        case_id="C-1",
        plan_id="P-1",
        kind="orchestrate",
        role="QA",
        repository="https://example.org/billing.git",
        instruction="Repair  the\nparser.",
        status="completed",
        summary="I did it the way of a.",
        commits=(COMMIT,),
        branch="fleet/T-1",
        files_changed=("src/a.py",),
        operations={"x_search_memory": 1, "x_web_search": 1, "files_edit_file": 2, "remembering_remember": 3},
        tests=TESTS,
        checks={"lint": "passed", "tests": "passed", "build": "skipped"},
        usage=Usage(prompt_tokens=10),
        duration_ms=700,
        verdict="verified",
    )
    assert found.outcome == WorkOutcome(
        repository="https://example.org/billing.git",
        subject_id=TASK.execution_id,
        goal="Repair the parser.",
        goal_type="fix",
        role="QA",
        approach="orchestrate/hybrid",
        model="m",
        agents=3,
        agents_used=("a", "b"),
        rounds=1,
        memory_share=4 / 7,
        research_share=1 / 7,
        tool_share=2 / 7,
        success=True,
        status="completed",
        evidence=1.0,
        usage=Usage(prompt_tokens=10),
        duration_ms=700,
        metadata={VERDICT: "verified"},
    )
    lesson, fact = found.memories
    assert lesson == Memory(
        namespace=repository_namespace(LOCATION),
        text=(
            "Task: Repair the parser.\n"
            "Outcome: completed, verified by a test or check that fails without the change; "
            "2 candidates: 1 verified, 1 refuted.\n"
            "The chosen solution: I did it the way of a.\n"
            "Changed: src/a.py (+12 -3)\n"
            "Tests: 99 passed, 0 failed, 0 errors\n"
            "Checks: lint passed, tests passed\n"
            "Failed: tests: test_round failed: 2 != 3"
        ),
        kind=MemoryKind.OUTCOME,
        metadata={"status": "completed", "role": "QA", "kind": "orchestrate", "verdict": "verified"},
        source=f"execution:{TASK.execution_id}",
    )
    assert fact == replace(lesson, text="Tests need Redis.", kind=MemoryKind.FACT, metadata={})


async def test_without_a_winner_the_nearest_tells_what_failed() -> None:
    found = await left(
        noted("a", "Tests need Redis."),
        submitted("a", "src/a.py"),
        submitted("b", "src/b.py"),
        checked("a", TESTS, passed=False),
        checked("b", FAILING, passed=False, verdict=Verdict.REFUTED),
        ranked("b", "a"),
        end=ended(ev.ExecutionStatus.NO_WINNER, error="no candidate passed"),
    )
    assert (found.work.status, found.work.summary) == ("no_winner", "no candidate passed")
    assert (found.work.commits, found.work.files_changed) == ((), ())
    assert (found.work.tests, found.work.verdict, found.work.checks["tests"]) == (FAILING, "refuted", "failed")
    assert (found.outcome.success, found.outcome.status) == (False, "no_winner")
    [lesson] = found.memories
    assert lesson.text.count("test_round failed") == 1
    assert "Error: no candidate passed" in lesson.text


async def test_the_facts_are_those_of_the_winner_and_of_what_it_revises() -> None:
    names = ("a", "a2", "a3", "b")
    said = [
        *(noted(name, f"noted by {name}") for name in (*names, "_", "~", "a-reviewer")),
        submitted("a"),
        submitted("a2", revises="a", author_id="a"),
        submitted("a3", revises="a2", author_id="a"),
        submitted("b", revises="b"),
    ]
    options = MemoryOptions(write=True, namespaces=("agent:ada", "fleet"))
    for winner, facts in (("a2", ["noted by a", "noted by a2"]), ("b", ["noted by b"])):
        task = replace(TASK, memory=options, tenant="acme")
        found = await left(*said, ranked(*names, winner=winner), task=task, end=ended(winner=winner))
        assert found.facts == facts
        # All goes where the task says first.
        assert {(one.namespace, one.tenant) for one in found.memories} == {("agent:ada", "acme")}


async def test_what_was_noted_before_a_run_began_anew_or_only_looks_like_a_note_does_not_count() -> None:
    agent, real = noted("a", "fact")
    assert isinstance(real, ev.ToolFinished)
    found = await left(
        noted("a", "from the first try"),
        ("a", ev.RunClaimed(generation=2, host="h", resumes=False)),
        ("a", ev.RunStarted(role="DEV", model="m", messages=(), tools=())),
        noted("a", "from the second try"),
        ("a", ev.RunClaimed(generation=3, host="h", resumes=True)),
        noted("a", "and the third"),
        called("a", "remember", "mcp_evil", remembered="fact"),
        called("a", "read_file", "remembering", remembered="fact"),
        (agent, replace(real, result=replace(real.result, success=False))),
        noted("a", ["x"]),
        noted("a", "  "),
        submitted("a"),
        ranked("a", winner="a"),
        end=ended(winner="a"),
    )
    assert found.facts == ["from the second try", "and the third"]


async def test_all_of_it_is_bounded() -> None:
    flood = "word " * 20_000
    names = [str(number) for number in range(5)]
    files = [f"f{number}" for number in range(500)]
    found = await left(
        *(noted("0", f"{number} {flood}") for number in range(30)),
        *(submitted(name, flood, *files, summary=flood, error=flood) for name in names),
        ranked(*names, winner="0"),
        task=replace(TASK, description=flood),
        end=ended(winner="0", error=flood),
    )
    work = found.work
    assert (len(work.instruction) < 2_100, len(work.summary) < 4_100, len(work.files_changed)) == (True, True, 300)
    assert len(found.memories[0].text) <= MAX_MEMORY_CHARS
    assert len(found.facts) == MAX_FACTS and max(map(len, found.facts)) <= MAX_FACT_CHARS
