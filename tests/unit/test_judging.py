"""Votes: who is asked about what, what is made of the replies, and what a judge is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.ballot import LETTERS, ballot_order, fair_shares
from swe_ai_fleet.agents.judging.reading import choice_schema, read_choice
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, CheckResult
from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.errand import JudgeAssignment
from swe_ai_fleet.domain.errors import AgentLost, Fenced, ModelUnavailable
from swe_ai_fleet.domain.event import ExecutionStarted, RunLost, RunReassigned, VotesCast, Writer
from swe_ai_fleet.domain.execution import fold
from swe_ai_fleet.domain.review import Critique, Vote
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.approvals import Approvals
from swe_ai_fleet.orchestrator.judging import MAX_BALLOT, MAX_JUDGES, MAX_LONE_SAMPLES, Contest, lone_samples, vote
from swe_ai_fleet.orchestrator.selection import ARCHITECT, rank
from swe_ai_fleet.testing.fleet import FAILED, PASSED, ScriptedFleet
from swe_ai_fleet.testing.memory_log import MemoryLog
from tests.candidates import a_candidate

ONE, TWO, THREE = "agent-dev-1", "agent-dev-2", "agent-dev-3"


def a_task(**changes: object) -> Task:
    repo = RepoRef(location="/srv/app")
    base = Task(task_id="t", kind=TaskKind.DELIBERATE, description="Add a greeting", repo=repo)
    return replace(base, num_agents=3, rounds=1, **changes)


def candidate(name: str, *, diff: str = "", author: str = "") -> Candidate:
    return a_candidate(name, diff=diff, author_id=author)


def report(name: str, *results: CheckResult) -> CheckReport:
    return CheckReport(candidate_id=name, results=results or (PASSED,))


@dataclass
class World:
    """A fleet whose judges follow a script, and the log that the driver writes."""

    log: MemoryLog = field(default_factory=MemoryLog)
    task: Task = field(default_factory=a_task)
    journal: object = None
    council: Council | None = None

    def __post_init__(self) -> None:
        self.fleet = ScriptedFleet(storage=self.log, judging=self.judging)
        self.says: Callable[[JudgeAssignment, int], str] = lambda asked, _: asked.candidates[0].candidate_id
        self.faults: dict[str, list[Exception]] = {}
        self.repository = PinnedRepository(tenant="default", location="/srv/app", commit="c" * 40)

    def judging(self, asked: JudgeAssignment) -> tuple[Vote, ...]:
        if faults := self.faults.get(asked.judge_id):
            raise faults.pop(0)
        order = tuple(one.candidate_id for one in asked.candidates)
        return tuple(
            Vote(judge_id=asked.judge_id, sample=sample, order=order, choice=self.says(asked, sample))
            for sample in range(1, asked.samples + 1)
        )

    async def vote(
        self, *names: str | Candidate, failing: tuple[str, ...] = (), known: bool = False, **more: object
    ) -> tuple[Vote, ...]:
        field = [candidate(one) if isinstance(one, str) else one for one in names]
        reports = {
            one.candidate_id: report(one.candidate_id, FAILED if one.candidate_id in failing else PASSED)
            for one in field
        }
        events = [stored async for stored in self.log.read(self.task.tenant, self.task.execution_id)]
        state = fold(events if known else events[:1])
        assert state is not None
        runs = AgentRuns(
            fleet=self.fleet,
            journal=self.journal,
            approvals=Approvals(self.log, self.task),
            generation=1,
            known=replace(state, council=self.council),
            pauses=(0.0, 0.0),
        )
        return await vote(runs, self.task, Contest(candidates=field, reports=reports, **more))

    def ballots(self) -> dict[str, list[str]]:
        return {asked.judge_id: sorted(one.candidate_id for one in asked.candidates) for asked in self.fleet.judged}

    def events(self, kind: type) -> list[object]:
        return [event.body for event in self.log.events if isinstance(event.body, kind)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    writer = Writer(tenant=world.task.tenant, execution_id=world.task.execution_id, task_id=world.task.task_id)
    async with world.log.journal(writer) as journal:
        world.journal = journal
        started = ExecutionStarted(task=world.task, repository=world.repository, fingerprint="")
        await journal.append(started)
        yield world


class TestWhoVotes:
    async def test_peers_vote_about_each_others_work_and_never_about_their_own(self, world: World) -> None:
        votes = await world.vote(ONE, TWO, THREE)
        assert world.ballots() == {ONE: [TWO, THREE], TWO: [ONE, THREE], THREE: [ONE, TWO]}
        assert {asked.samples for asked in world.fleet.judged} == {2}
        assert len({asked.seed for asked in world.fleet.judged}) == 3
        assert [vote.judge_id for vote in votes] == [ONE, ONE, TWO, TWO, THREE, THREE]
        assert sorted(len(said.votes) for said in world.events(VotesCast)) == [2, 2, 2]

    async def test_a_revision_is_its_authors_work_and_so_is_what_behaves_alike(self, world: World) -> None:
        revised = candidate(f"{ONE}-r1", author=ONE)
        await world.vote(revised, TWO, candidate(THREE, diff=f"{ONE}-r1"))
        # One and three came to the same: neither judges it, and nothing is left to choose for them.
        assert world.ballots() == {}
        await world.vote(revised, TWO, THREE, behaviours={THREE: "same", TWO: "same"})
        assert world.ballots() == {}

    async def test_who_failed_judges_the_others_alone_and_more_often(self, world: World) -> None:
        votes = await world.vote(ONE, TWO, THREE, failing=(THREE,))
        assert world.ballots() == {THREE: [ONE, TWO]}
        assert len(votes) == 4
        [asked] = world.fleet.judged
        assert {one.candidate_id for one in asked.reports} == {ONE, TWO}

    async def test_there_is_no_vote_where_there_is_no_choice(self, world: World) -> None:
        assert await world.vote(ONE, TWO, failing=(ONE,)) == ()
        assert await world.vote(ONE, TWO, failing=(ONE, TWO)) == ()
        assert await world.vote(candidate(ONE, diff="x"), candidate(TWO, diff="x")) == ()
        world.task = replace(world.task, rounds=0)
        assert await world.vote(ONE, TWO, THREE) == ()
        assert world.fleet.judged == []
        world.task = replace(world.task, num_agents=2, rounds=1)
        assert await world.vote(ONE, TWO) == ()

    async def test_a_council_votes_with_its_own_profiles_and_without_agents_that_somebody_else_runs(
        self, world: World
    ) -> None:
        names = ("x", "y", "z")
        endpoints = {"x": "https://agents.example.org:443"}
        members = [CouncilMember(agent_id=name, model_profile=f"of-{name}") for name in names]
        world.council = Council(council_id="c", role=Role.DEV, members=tuple(members))
        await world.vote(*names)
        profiles = {asked.judge_id: asked.perspective.model_profile for asked in world.fleet.judged}
        assert profiles == {name: f"of-{name}" for name in names}
        world.fleet.judged.clear()
        members = [CouncilMember(agent_id=name, endpoint=endpoints.get(name, "")) for name in names]
        world.council = Council(council_id="c", role=Role.DEV, members=tuple(members))
        await world.vote(*names)
        assert world.ballots() == {"y": ["x", "z"], "z": ["x", "y"]}

    async def test_ballots_and_juries_are_bounded(self, world: World) -> None:
        world.task = replace(world.task, num_agents=12)
        names = [f"agent-dev-{number}" for number in range(1, 13)]
        await world.vote(*names)
        assert len(world.fleet.judged) == MAX_JUDGES
        assert {len(asked.candidates) for asked in world.fleet.judged} == {MAX_BALLOT}
        shown = {name for names in world.ballots().values() for name in names}
        assert shown.isdisjoint(world.ballots()), "who is judged does not judge where others can"

    async def test_the_architect_alone_chooses_among_the_best(self, world: World) -> None:
        world.task = replace(world.task, architect_top_k=2, rounds=0, model_profile="big,small")
        said = [
            Critique(reviewer_id="peer", candidate_id=name, round=1, score=score, error=error)
            for name, score, error in ((ONE, 0.1, ""), (TWO, 0.9, ""), (THREE, 0.8, ""), (THREE, 0.0, "none"))
        ]
        votes = await world.vote(ONE, TWO, THREE, critiques=said)
        [asked] = world.fleet.judged
        assert (asked.judge_id, asked.agent_id) == (ARCHITECT, "architect-judges")
        assert [one.candidate_id for one in asked.candidates] == [TWO, THREE]
        assert [one.candidate_id for one in asked.critiques] == [TWO, THREE]
        assert (asked.perspective.model_profile, asked.samples) == ("big", 4)
        assert {vote.judge_id for vote in votes} == {ARCHITECT}
        # It never sees what failed.
        world.fleet.judged.clear()
        world.task = replace(world.task, architect_top_k=3)
        await world.vote(ONE, TWO, THREE, failing=(TWO,))
        assert world.ballots() == {ARCHITECT: [ONE, THREE]}

    @given(st.integers(1, 16))
    def test_a_judge_alone_sees_each_candidate_first_equally_often(self, count: int) -> None:
        samples = lone_samples(count)
        assert min(3, MAX_LONE_SAMPLES) <= samples <= MAX_LONE_SAMPLES
        assert samples % count == 0 or count > MAX_LONE_SAMPLES


class TestWhatBecomesOfVotes:
    async def test_an_outcome_that_votes_change(self, world: World) -> None:
        world.says = lambda asked, _: max(one.candidate_id for one in asked.candidates)
        votes = await world.vote(ONE, TWO, THREE)
        field = [candidate(name) for name in (ONE, TWO, THREE)]
        reports = {name: report(name) for name in (ONE, TWO, THREE)}
        assert [one.candidate_id for one in rank(field, reports)] == [ONE, TWO, THREE]
        assert [one.candidate_id for one in rank(field, reports, votes=votes)] == [THREE, TWO, ONE]

    async def test_a_judge_whose_votes_stand_is_not_asked_again(self, world: World) -> None:
        first = await world.vote(ONE, TWO, THREE)
        asked = len(world.fleet.judged)
        world.says = lambda asked, _: asked.candidates[-1].candidate_id
        assert await world.vote(ONE, TWO, THREE, known=True) == first
        assert len(world.fleet.judged) == asked
        assert len(world.events(VotesCast)) == 3

    async def test_a_process_that_is_lost_is_replaced(self, world: World) -> None:
        world.faults[TWO] = [AgentLost("node gone"), AgentLost("node gone")]
        votes = await world.vote(ONE, TWO, THREE)
        assert len(votes) == 6
        assert [(said.lost_agent_id, said.attempt) for said in world.events(RunReassigned)] == [
            (f"{TWO}-judges", 2),
            (f"{TWO}-judges", 3),
        ]
        generations = [asked.generation for asked in world.fleet.judged if asked.judge_id == TWO]
        assert generations == sorted(set(generations))

    async def test_a_judge_that_is_lost_for_good_costs_its_own_votes_only(self, world: World) -> None:
        world.faults = {ONE: [AgentLost("gone")] * 3, TWO: [ModelUnavailable("no server")]}
        votes = await world.vote(ONE, TWO, THREE)
        assert {vote.judge_id for vote in votes} == {THREE}
        assert sorted(lost.lost_agent_id for lost in world.events(RunLost)) == [f"{ONE}-judges", f"{TWO}-judges"]

    async def test_whoever_is_fenced_stops(self, world: World) -> None:
        world.faults[ONE] = [Fenced("another driver")]
        with pytest.raises(ExceptionGroup) as raised:
            await world.vote(ONE, TWO, THREE)
        assert isinstance(raised.value.exceptions[0], Fenced)
        assert world.events(RunLost) == []

    async def test_a_judge_speaks_for_itself_and_about_its_ballot_only(self, world: World) -> None:
        def forged(asked: JudgeAssignment) -> tuple[Vote, ...]:
            order = tuple(one.candidate_id for one in asked.candidates)
            own = Vote(judge_id="somebody", sample=1, order=(*order, ONE, TWO, THREE), choice=asked.judge_id)
            fair = Vote(judge_id="somebody", sample=2, order=order, choice=order[0], reason="x" * 100_000)
            return (own, fair, *[fair] * 50)

        world.fleet.judging = forged
        votes = await world.vote(ONE, TWO, THREE)
        assert Counter(vote.judge_id for vote in votes) == {ONE: 2, TWO: 2, THREE: 2}
        assert [bool(vote.error) for vote in votes] == [True, False] * 3
        assert all(vote.judge_id not in (*vote.order, vote.choice) for vote in votes)
        assert all(len(vote.reason) < 5_000 for vote in votes)


class TestBallots:
    @given(st.lists(st.text(max_size=4), min_size=1, max_size=8, unique=True), st.integers(0, 2**31))
    def test_in_as_many_samples_each_stands_in_each_place_once(self, names: list[str], seed: int) -> None:
        orders = [ballot_order(names, seed, sample) for sample in range(1, len(names) + 1)]
        for place in range(len(names)):
            assert sorted(order[place] for order in orders) == sorted(names)
        assert ballot_order(names[::-1], seed, 1) == orders[0]
        assert ballot_order(names, seed, len(names) + 1) == orders[0][::-1]

    def test_seeds_make_orders(self) -> None:
        names = ["a", "b", "c", "d"]
        assert len({ballot_order(names, seed, 1) for seed in range(50)}) > 10

    @given(st.lists(st.integers(0, 10_000), max_size=8), st.integers(-5, 40_000))
    def test_shares_are_fair(self, sizes: list[int], room: int) -> None:
        shares = fair_shares(sizes, room)
        assert sum(shares) <= max(0, room)
        assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
        cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
        if cut:
            assert sum(shares) > room - len(sizes)
            assert max(cut) - min(cut) <= 1
            # What cannot be shared evenly goes to one of them.
            assert max(shares) <= max(cut) + 1


class TestReading:
    @pytest.mark.parametrize(
        "text",
        [
            '{"reason": "It guards empty input.", "choice": "B"}',
            'Sure!\n```json\n{"choice": "Candidate b", "reason": ""}\n```',
            "<think>{\"choice\": \"A\"} no, rather\n</think>{'choice': 'B', 'reason': 'x'}",
            '{"answer": {"winner": "B", "why": "smaller"}}',
            '{"Choice": " **B** "}',
            "B",
            "**Candidate B.**",
            "A breaks on empty input.\n\nChoice: B",
            "My vote is candidate B because A is longer",
            '{"choice": "B", "reason": "the diff says {\\"choice\\": \\"B\\"}"}',
        ],
    )
    def test_what_names_one_is_read(self, text: str) -> None:
        assert read_choice([text], "AB")[0] == "B"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "Both are fine.",
            "A is good and B is better",
            '{"choice": "C"}',
            '{"choice": "neither", "reason": "the answer is A"}',
            '{"choice": "A"} {"choice": "B"}',
            "Choice: A. Choice: B.",
            "choice: a candidate that works",
            "I" * 100_000,
            '{"choice": ' * 5_000,
            "choice " * 30_000,
            "\ud83d",
        ],
    )
    def test_what_names_none_or_several_is_not_guessed(self, text: str) -> None:
        with pytest.raises(ValueError, match="it names"):
            read_choice([text], "AB")

    @given(st.text(max_size=200))
    def test_a_letter_that_is_read_is_on_the_ballot(self, text: str) -> None:
        try:
            letter, _ = read_choice([text], "AB")
        except ValueError:
            return
        assert letter in ("A", "B")

    def test_the_schema_allows_the_letters_of_the_ballot(self) -> None:
        schema = choice_schema(LETTERS[:3])
        assert list(schema["properties"]) == schema["required"] == ["reason", "choice"]
        assert schema["properties"]["choice"]["enum"] == ["A", "B", "C"]
