"""Votes: who is asked about what, what is made of the replies, and what of them can be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.judging import read_choice
from swe_ai_fleet.agents.prompting import ballot_order
from swe_ai_fleet.domain.assignment import JudgeAssignment, ReviewAssignment, Subject
from swe_ai_fleet.domain.errors import AgentLost, ModelUnavailable
from swe_ai_fleet.domain.event import RunLost, RunReassigned, VotesCast
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.review import Critique, Vote
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.judging import MAX_BALLOT, MAX_JUDGES
from swe_ai_fleet.orchestrator.score import ARCHITECT
from tests.scripted_fleet import FAILED, ScriptedFleet, ScriptedRun
from tests.tables import table
from tests.unit.test_executions import World, a_task

ONE, TWO, THREE = "agent-dev-1", "agent-dev-2", "agent-dev-3"


@dataclass
class Jury(World):
    """Agents whose reviews put nothing in order, so that judges are asked; these follow a script."""

    says: dict[str, str] = field(default_factory=dict[str, str])
    faults: dict[str, list[Exception]] = field(default_factory=dict[str, list[Exception]])
    councils: CouncilStore | None = None

    def __post_init__(self) -> None:
        self.fleet = ScriptedFleet(storage=self.log, judging=self.judging)
        self.fleet.orders = False

    def judging(self, asked: JudgeAssignment) -> tuple[Vote, ...]:
        if faults := self.faults.get(asked.judge_id):
            raise faults.pop(0)
        order = tuple(one.candidate_id for one in asked.candidates)
        choice = self.says.get(asked.judge_id, order[0])
        return tuple(
            Vote(judge_id=asked.judge_id, sample=sample, order=order, choice=choice)
            for sample in range(asked.known + 1, asked.known + asked.samples + 1)
        )

    async def vote(self, *, failing: tuple[str, ...] = (), **task: object) -> ExecutionState:
        """What an execution comes to, whose agents bring candidates of which some fail, for good."""
        names = (*failing, *(f"{name}-r1" for name in failing))
        self.fleet.runs = {**self.fleet.runs, **{name: ScriptedRun(checks=(FAILED,)) for name in names}}
        async with self.running(profiles=("big", "small"), councils=self.councils) as executions:
            name = (await executions.submit(a_task(**task))).execution_id
            return await executions.wait(DEFAULT_TENANT, name)

    @property
    def ballots(self) -> dict[str, list[str]]:
        return {asked.judge_id: sorted(one.candidate_id for one in asked.candidates) for asked in self.fleet.judged}


def judged(state: ExecutionState) -> list[Vote]:
    """The votes of judges; reviewers here have an order in no case."""
    return [vote for vote in state.votes if vote.error != "it named no order"]


@pytest.fixture
def world() -> Jury:
    return Jury()


ALL = {ONE: [TWO, THREE], TWO: [ONE, THREE], THREE: [ONE, TWO]}


class TestWhoVotes:
    async def test_peers_vote_about_each_others_work_and_never_about_their_own(self, world: Jury) -> None:
        world.says = {ONE: THREE, TWO: THREE, THREE: TWO}
        state = await world.vote()
        assert world.ballots == ALL
        assert {asked.samples for asked in world.fleet.judged} == {2}
        assert len({asked.seed for asked in world.fleet.judged}) == 3
        assert Counter(vote.judge_id for vote in judged(state)) == {ONE: 2, TWO: 2, THREE: 2}
        # What they said as reviewers stands beside it.
        assert sorted(len(said.votes) for said in world.bodies(VotesCast)) == [1, 1, 1, 3, 3, 3]
        # By the evidence alone the names would decide.
        assert [one.candidate_id for one in state.ranking] == [THREE, TWO, ONE]

    async def test_a_revision_is_its_authors_work_and_so_is_what_behaves_alike(self, world: Jury) -> None:
        def review(asked: ReviewAssignment, subject: Subject) -> Critique:
            about = subject.candidate.candidate_id
            score = 0.1 if about == ONE else 1.0
            return Critique(reviewer_id=asked.reviewer_id, candidate_id=about, round=asked.round, score=score)

        # One and three come to the same: neither judges it, and nothing is left to choose for them.
        world.fleet.runs = {name: ScriptedRun(patch=b"same\n") for name in (f"{ONE}-r1", THREE)}
        world.fleet.reviewing = review
        state = await world.vote()
        alike = [{one.candidate_id, *one.duplicates} for one in state.ranking if one.duplicates]
        assert (alike, world.ballots) == ([{f"{ONE}-r1", THREE}], {})

    async def test_who_failed_judges_the_others_alone_and_more_often(self, world: Jury) -> None:
        state = await world.vote(failing=(THREE,))
        assert world.ballots == {THREE: [ONE, TWO]}
        assert len(judged(state)) == 4
        [asked] = world.fleet.judged
        assert {one.candidate_id for one in asked.reports} == {ONE, TWO}

    async def test_there_is_no_vote_where_there_is_no_choice(self) -> None:
        for task, failing in (({"num_agents": 2}, ()), ({"rounds": 0}, ()), ({}, (ONE, TWO)), ({}, (ONE, TWO, THREE))):
            world = Jury()
            state = await world.vote(failing=failing, **task)
            assert (world.fleet.judged, judged(state)) == ([], []), (task, failing)

    async def test_ballots_and_juries_are_bounded(self, world: Jury) -> None:
        await world.vote(num_agents=12)
        assert len(world.fleet.judged) == MAX_JUDGES
        assert {len(asked.candidates) for asked in world.fleet.judged} == {MAX_BALLOT}
        shown = {name for names in world.ballots.values() for name in names}
        assert shown.isdisjoint(world.ballots), "who is judged does not judge where others can"

    async def test_the_architect_alone_chooses_among_the_best_and_never_sees_what_failed(self, world: Jury) -> None:
        world.fleet.runs = {ONE: ScriptedRun(insertions=9)}
        state = await world.vote(architect_top_k=2, rounds=0, model_profile="big,small")
        [asked] = world.fleet.judged
        assert (asked.judge_id, asked.agent_id) == (ARCHITECT, "architect-judges")
        assert [one.candidate_id for one in asked.candidates] == [TWO, THREE]
        assert (asked.perspective.model_profile, asked.samples) == ("big", 4)
        assert {vote.judge_id for vote in judged(state)} == {ARCHITECT}
        world = Jury()
        await world.vote(architect_top_k=3, failing=(TWO,), rounds=0)
        assert world.ballots == {ARCHITECT: [ONE, THREE]}


class TestWhatBecomesOfVotes:
    async def test_a_lost_judge_is_replaced_and_one_lost_for_good_costs_its_own_votes_only(self, world: Jury) -> None:
        gone = AgentLost("node gone")
        world.faults = {ONE: [gone] * 3, TWO: [ModelUnavailable("no server")], THREE: [gone, gone]}
        assert [vote.judge_id for vote in judged(await world.vote())] == [THREE] * 2
        again = sorted((said.lost_agent_id, said.attempt) for said in world.bodies(RunReassigned))
        assert again == [(f"{name}-judges", attempt) for name in (ONE, THREE) for attempt in (2, 3)]
        assert sorted(lost.lost_agent_id for lost in world.bodies(RunLost)) == [f"{ONE}-judges", f"{TWO}-judges"]
        generations = [asked.generation for asked in world.fleet.judged if asked.judge_id == THREE]
        assert generations == sorted(set(generations)) and len(generations) == 3

    async def test_a_judge_speaks_for_itself_and_about_its_ballot_only(self, world: Jury) -> None:
        def forged(asked: JudgeAssignment) -> tuple[Vote, ...]:
            order = tuple(one.candidate_id for one in asked.candidates)
            own = Vote(
                judge_id="somebody", sample=asked.known + 1, order=(*order, ONE, TWO, THREE), choice=asked.judge_id
            )
            fair = Vote(judge_id="somebody", sample=asked.known + 2, order=order, choice=order[0], reason="x" * 100_000)
            return (own, fair, *[fair] * 50)

        world.fleet.judging = forged
        votes = judged(await world.vote())
        assert Counter(vote.judge_id for vote in votes) == {ONE: 2, TWO: 2, THREE: 2}
        assert Counter(bool(vote.error) for vote in votes) == {True: 3, False: 3}
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


class TestReading:
    @table(
        "text",
        [
            '{"reason": "It guards empty input.", "choice": "B"}',
            'Sure!\n```json\n{"choice": "Candidate b", "reason": ""}\n```',
            "<think>{\"choice\": \"A\"} no, rather\n</think>{'choice': 'B', 'reason': 'x'}",
            "B",
            "A breaks on empty input.\n\nChoice: B",
            "My vote is candidate B because A is longer",
            '{"choice": "B", "reason": "the diff says {\\"choice\\": \\"B\\"}"}',
        ],
    )
    def test_what_names_one_is_read(self, text: str) -> None:
        assert read_choice([text], "AB")[0] == "B"

    @table(
        "text",
        [
            "",
            "Both are fine.",
            '{"choice": "C"}',
            '{"choice": "neither", "reason": "the answer is A"}',
            '{"choice": "A"} {"choice": "B"}',
            "choice: a candidate that works",
            "I" * 100_000,
            '{"choice": ' * 5_000,
            "\ud83d",
        ],
    )
    def test_what_names_none_or_several_is_not_guessed(self, text: str) -> None:
        with pytest.raises(ValueError, match="it chose"):
            read_choice([text], "AB")
