"""What a run notes for later ones, and what of an ended execution is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.agents.remembering import MAX_FACT_CHARS, MAX_FACTS, RememberingTools, noted_in
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckKind, CheckReport, CheckResult, RankedCandidate
from swe_ai_fleet.domain.candidate import TestSummary as Summary
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.event import (
    Event,
    EventBody,
    ExecutionStatus,
    RunClaimed,
    RunStarted,
    StoredEvent,
    ToolFinished,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import MAX_MEMORY_CHARS, Memory, MemoryKind, repository_namespace
from swe_ai_fleet.domain.message import AssistantMessage
from swe_ai_fleet.domain.task import MemoryOptions, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Observation, Step, StopReason
from swe_ai_fleet.domain.verdict import Verdict
from swe_ai_fleet.memory.lessons import lessons
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.secrets import Secrets

ENDED = "2026-03-01T12:00:00.000+00:00"
LOCATION = "https://git.example.org/billing.git"
SECRET = "hunter2-hunter2"


def candidate(name: str, **fields: object) -> Candidate:
    values: dict[str, object] = {
        "candidate_id": name,
        "agent_id": f"agent-{name}",
        "role": Role.DEV,
        "summary": f"I fixed it the way of {name}.",
        "stop_reason": StopReason.FINAL_ANSWER,
        "artifacts": Artifacts(
            files_changed=("billing.py", "test_billing.py"), insertions=12, deletions=3, tests=Summary(passed=9)
        ),
        "usage": Usage(),
        "audit_head": "",
        "submitted_at": ENDED,
    }
    return Candidate(**values | fields)  # pyright: ignore[reportArgumentType]


def report(name: str, *, passed: bool, verdict: Verdict | None = None) -> CheckReport:
    result = CheckResult(
        kind=CheckKind.COMMAND, name="tests", passed=passed, problems=() if passed else ("test_round failed: 2 != 3",)
    )
    return CheckReport(candidate_id=name, results=(result,), verdict=verdict)


def ended(status: ExecutionStatus = ExecutionStatus.COMPLETED, **fields: object) -> ExecutionState:
    task = Task(
        task_id="t-1",
        kind=TaskKind.ORCHESTRATE,
        description="Round totals\nhalf up.",
        repo=RepoRef(location=LOCATION),
        memory=MemoryOptions(write=True),
    )
    values: dict[str, object] = {
        "execution_id": "e-1",
        "task": task,
        "repository": PinnedRepository(tenant="default", location=LOCATION, commit="c" * 40),
        "fingerprint": "",
        "started_at": ENDED,
        "updated_at": ENDED,
        "finished_at": ENDED,
        "status": status,
        "candidates": {"a": candidate("a"), "b": candidate("b")},
        "reports": {"a": report("a", passed=True), "b": report("b", passed=False)},
        "ranking": (
            RankedCandidate(candidate_id="a", rank=1, score=1.0, accepted=True),
            RankedCandidate(candidate_id="b", rank=2, score=0.1, accepted=False),
        ),
        "winner_id": "a",
    }
    return ExecutionState(**values | fields)  # pyright: ignore[reportArgumentType]


class Log:
    """Events of several runs, as their pipelines wrote them."""

    def __init__(self) -> None:
        self.stored: list[StoredEvent] = []

    def add(self, agent_id: str, body: EventBody) -> None:
        writer = Writer(tenant="default", execution_id="e-1", task_id="t-1", agent_id=agent_id)
        event: Event = writer.event(body, ordinal=len(self.stored) + 1, at=ENDED)
        self.stored.append(StoredEvent(sequence=len(self.stored) + 1, event=event))

    def notes(self, agent_id: str, *facts: str) -> None:
        """What a run noted, by the real tool over the real pipeline."""
        for fact in facts:
            self.add(agent_id, _noted(agent_id, fact))


def _noted(agent_id: str, fact: str) -> ToolFinished:
    trail = AuditTrail(execution_id="e-1", agent_id=agent_id)
    spec = RememberingTools.definitions["remember"].spec
    result = ToolResult(success=True, operation="remember", content="Noted.", metadata={"remembered": fact})
    trail.open(spec, arguments={"fact": fact}, secret={}, call_id="").close(result)
    return ToolFinished(entry=trail.entries[-1], result=result)


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncGenerator[RememberingTools]:
    async with open_workspace(tmp_path, environment=Environment()) as workspace:
        yield RememberingTools(workspace, Pipeline(mask=Secrets((SECRET,))))


class TestRemember:
    async def test_a_fact_stands_in_the_metadata_of_its_call_and_nowhere_else(
        self, tools: RememberingTools, tmp_path: Path
    ) -> None:
        result = await tools.remember(f"  Tests are run with `make check`; the key is {SECRET}. ")
        assert result.success
        assert result.metadata == {"remembered": "Tests are run with `make check`; the key is [masked]."}
        assert not tools.definitions["remember"].spec.locks
        assert tools.definitions["remember"].spec.read_only
        assert list(tmp_path.iterdir()) == []
        step = Step(
            number=1,
            reply=AssistantMessage(),
            observations=(Observation(call_id="1", result=result), Observation(call_id="2", result=_other())),
            usage=Usage(),
        )
        assert noted_in([step]) == (result.metadata["remembered"],)

    async def test_facts_are_few_short_and_said_once(self, tools: RememberingTools) -> None:
        assert (await tools.remember("x" * MAX_FACT_CHARS)).success
        for number in range(1, MAX_FACTS):
            assert (await tools.remember(f"fact {number}")).success
        again = await tools.remember(" FACT 1 ")
        assert again.success
        assert "already" in again.content
        assert again.metadata == {}
        refused = [await tools.remember("one more"), await tools.remember(" "), await tools.remember("y" * 2_000)]
        assert [one.outcome for one in refused] == [Outcome.ERROR, Outcome.ERROR, Outcome.INVALID]
        assert str(MAX_FACTS) in refused[0].error

    async def test_a_run_that_goes_on_counts_what_it_noted_before(self, tools: RememberingTools) -> None:
        later = RememberingTools(tools.workspace, tools.pipeline, noted=[f"fact {n}" for n in range(MAX_FACTS)])
        assert "already" in (await later.remember("fact 3")).content
        assert not (await later.remember("another")).success


def _other() -> ToolResult:
    return ToolResult(success=True, operation="files_read_file", metadata={"remembered": "not by us"})


class TestLessons:
    def test_a_winner_leaves_how_it_went_and_what_it_noted(self) -> None:
        log = Log()
        log.notes("agent-a", "Tests need Redis.", "Tests need Redis.")
        log.notes("agent-b", "Everything is broken.")
        outcome, fact = lessons(ended(), log.stored)
        assert outcome == Memory(
            namespace=repository_namespace(LOCATION),
            text=(
                "Task: Round totals half up.\n"
                "Outcome: completed; 2 candidates, 1 accepted.\n"
                "The chosen solution: I fixed it the way of a.\n"
                "Changed: billing.py, test_billing.py (+12 -3)\n"
                "Tests: 9 passed, 0 failed, 0 errors\n"
                "Checks: tests passed\n"
                "Failed: tests: test_round failed: 2 != 3"
            ),
            kind=MemoryKind.OUTCOME,
            metadata={"status": "completed", "role": "DEV", "kind": "orchestrate"},
            source="execution:e-1",
            created_at=ENDED,
        )
        assert fact == replace(outcome, text="Tests need Redis.", kind=MemoryKind.FACT, metadata={})
        assert lessons(ended(), log.stored) == (outcome, fact)

    @pytest.mark.parametrize(
        ("verdict", "said"),
        [
            (Verdict.VERIFIED, "completed, verified by a test or check that fails without the change; 2 candidates: "),
            (Verdict.UNVERIFIED, "completed, unverified: nothing shows that the change works; 2 candidates: "),
        ],
    )
    def test_an_unverified_delivery_is_not_remembered_as_a_plain_success(self, verdict: Verdict, said: str) -> None:
        reports = {
            "a": report("a", passed=True, verdict=verdict),
            "b": report("b", passed=False, verdict=Verdict.REFUTED),
        }
        (outcome,) = lessons(ended(reports=reports), [])
        assert outcome.text.splitlines()[1] == f"Outcome: {said}1 {verdict}, 1 refuted."
        assert outcome.metadata["verdict"] == verdict

    def test_where_nobody_won_there_is_what_failed(self) -> None:
        log = Log()
        log.notes("agent-a", "Tests need Redis.")
        reports = {name: report(name, passed=False) for name in ("a", "b")}
        state = ended(ExecutionStatus.NO_WINNER, winner_id="", reports=reports, error="no candidate passed")
        (outcome,) = lessons(state, log.stored)
        assert "no_winner" in outcome.text
        assert outcome.text.count("test_round failed") == 1
        assert "Error: no candidate passed" in outcome.text

    @pytest.mark.parametrize(
        "state",
        [
            ended(ExecutionStatus.CANCELLED),
            ended(ExecutionStatus.REJECTED),
            ended(ExecutionStatus.FAILED, candidates={}, winner_id=""),
            ended(ExecutionStatus.IN_PROGRESS),
            ended(task=replace(ended().task, memory=MemoryOptions(read=True))),
        ],
    )
    def test_others_leave_nothing(self, state: ExecutionState) -> None:
        log = Log()
        log.notes("agent-a", "Tests need Redis.")
        assert lessons(state, log.stored) == ()

    def test_a_revision_that_won_leaves_its_authors_notes_of_both_rounds(self) -> None:
        candidates = {
            "a": candidate("a"),
            "a2": candidate("a2", revises="a", author_id="agent-a"),
            "a3": candidate("a3", revises="a2", author_id="agent-a"),
            "b": candidate("b", revises="b"),
        }
        log = Log()
        for name in candidates:
            log.notes(f"agent-{name}", f"noted by {name}")
        found = [one.text for one in lessons(ended(candidates=candidates, winner_id="a2"), log.stored)[1:]]
        assert found == ["noted by a", "noted by a2"]
        assert [one.text for one in lessons(ended(candidates=candidates, winner_id="b"), log.stored)[1:]] == [
            "noted by b"
        ]

    def test_what_a_run_noted_before_it_began_anew_does_not_count(self) -> None:
        log = Log()
        log.notes("agent-a", "from the first try")
        log.add("agent-a", RunClaimed(generation=2, host="h", resumes=False))
        log.add("agent-a", RunStarted(role="DEV", model="m", messages=(), tools=()))
        log.notes("agent-a", "from the second try")
        log.add("agent-a", RunClaimed(generation=3, host="h", resumes=True))
        log.notes("agent-a", "and the third")
        assert [one.text for one in lessons(ended(), log.stored)[1:]] == ["from the second try", "and the third"]

    def test_what_only_looks_like_a_note_is_none(self) -> None:
        log = Log()
        real = _noted("agent-a", "fact")
        for entry, result in (
            (replace(real.entry, tool="mcp_evil"), real.result),
            (replace(real.entry, operation="read_file"), real.result),
            (real.entry, replace(real.result, success=False)),
            (real.entry, replace(real.result, metadata={"remembered": ["x"]})),
            (real.entry, replace(real.result, metadata={"remembered": "  "})),
        ):
            log.add("agent-a", ToolFinished(entry=entry, result=result))
        assert len(lessons(ended(), log.stored)) == 1

    def test_it_goes_where_the_task_says_first(self) -> None:
        options = MemoryOptions(write=True, namespaces=("agent:ada", "fleet"))
        (outcome,) = lessons(ended(task=replace(ended().task, memory=options, tenant="acme")), ())
        assert (outcome.namespace, outcome.tenant) == ("agent:ada", "acme")

    def test_all_of_it_is_bounded(self) -> None:
        flood = "word \ud800 " * 20_000
        many = {
            str(number): candidate(
                str(number), summary=flood, error=flood, artifacts=Artifacts(files_changed=(flood,) * 500)
            )
            for number in range(50)
        }
        log = Log()
        log.notes("agent-0", *(f"{number} {flood}" for number in range(30)))
        state = ended(task=replace(ended().task, description=flood), candidates=many, winner_id="0", error=flood)
        outcome, *facts = lessons(state, log.stored)
        assert len(outcome.text) <= MAX_MEMORY_CHARS
        outcome.text.encode()
        assert len(facts) == MAX_FACTS
        assert all(len(one.text) <= MAX_FACT_CHARS for one in facts)
