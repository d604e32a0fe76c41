"""Rounds of peer review, over the log in memory: what they change, what they must not, and whoever takes them over."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.agents.prompting import Fence
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.assignment import ReviewAssignment, ScoreAssignment, Subject
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckResult, Verdict
from swe_ai_fleet.domain.errors import AgentLost, FleetError, PreconditionFailed
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.examination import TestSet as ExaminedTests
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.review import Critique, Finding, Proof, ProofOutcome, ReviewVerdict, VerifierScore
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Task
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.judging import PEERS, pairs
from swe_ai_fleet.tools.secrets import Secrets
from tests.recorded_runs import cut
from tests.scripted_fleet import FAILED, PASSED, PROVEN, ScriptedRun
from tests.unit.test_executions import World, a_task

ONE, TWO, THREE = "agent-dev-1", "agent-dev-2", "agent-dev-3"
POOR = replace(PASSED, name="style", passed=False, required=False, score=0.2)
MUST_FIX = Finding(text="it forgets the empty list", file="app.py", line=3, must_fix=True)


def says(
    assignment: ReviewAssignment,
    subject: Subject,
    verdict: ReviewVerdict = ReviewVerdict.ACCEPT,
    score: float = 1.0,
    *findings: Finding,
    error: str = "",
) -> Critique:
    return Critique(
        reviewer_id=assignment.reviewer_id,
        candidate_id=subject.candidate.candidate_id,
        round=assignment.round,
        verdict=verdict,
        score=score,
        content="I have looked at it.",
        findings=findings,
        usage=Usage(prompt_tokens=1000, model_calls=1),
        error=error,
    )


class Look(NamedTuple):
    reviewer_id: str
    round: int
    candidate: Candidate
    earlier: Critique | None


def looks(world: World) -> list[Look]:
    """What reviewers were asked, candidate by candidate; what they only had to put in order is left out."""
    reviews = ((one, subject) for one in world.fleet.reviewed for subject in one.subjects if not subject.settled)
    return [Look(one.reviewer_id, one.round, subject.candidate, subject.earlier) for one, subject in reviews]


def against(*blamed: str) -> Callable[[ReviewAssignment, Subject], Critique]:
    """Reviewers who find fault with these candidates and with no other."""

    def review(assignment: ReviewAssignment, subject: Subject) -> Critique:
        if subject.candidate.candidate_id in blamed:
            return says(assignment, subject, ReviewVerdict.REVISE, 0.1, MUST_FIX)
        return says(assignment, subject)

    return review


@pytest.fixture
def world() -> World:
    """A world whose reviewers do not say which candidate they would apply: judges are asked for that."""
    world = World()
    world.fleet.orders = False
    return world


async def test_a_review_makes_another_candidate_win(world: World):
    world.fleet.runs = {f"{ONE}-r1": ScriptedRun(checks=(FAILED,))}
    world.fleet.reviewing = against(ONE)
    undisputed = await World().run(a_task())
    state = await world.run(a_task())
    assert undisputed.winner_id == ONE
    assert state.winner_id in (TWO, THREE)
    assert {one.candidate_id for one in state.ranking} == {ONE, TWO, THREE}
    assert state.dropped == {f"{ONE}-r1": "worse: it fails tests, which its predecessor passed"}


async def test_a_revision_makes_its_author_win(world: World):
    world.fleet.runs = {
        ONE: ScriptedRun(checks=(FAILED,), summary="first go"),
        f"{ONE}-r1": ScriptedRun(summary="second go"),
        TWO: ScriptedRun(checks=(FAILED,)),
        f"{TWO}-r1": ScriptedRun(checks=(FAILED,)),
    }
    world.fleet.reviewing = against(ONE, TWO)
    state = await world.run(a_task(num_agents=2))
    assert not any(state.reports[name].accepted for name in (ONE, TWO))
    assert state.winner_id == f"{ONE}-r1"
    (revision,) = [one for one in world.fleet.begun if one.agent_id == f"{ONE}-r1"]
    assert (revision.author_id, revision.task.num_agents, revision.perspective.seed) == (ONE, 2, 1)
    assert revision.revision is not None
    assert revision.revision.candidate == state.candidates[ONE]
    assert revision.revision.report == state.reports[ONE]
    assert [critique.findings for critique in revision.revision.critiques] == [(MUST_FIX,)]
    assert state.candidates[f"{ONE}-r1"].revises == ONE
    assert state.judged == {f"{ONE}-r1", f"{TWO}-r1"}


async def test_who_objected_looks_again_until_the_objection_is_met(world: World):
    world.fleet.reviewing = against(ONE, f"{ONE}-r1")
    state = await world.run(a_task(rounds=5))
    rounds = Counter((one.round, one.candidate.candidate_id) for one in looks(world))
    assert rounds == dict.fromkeys([(1, ONE), (1, TWO), (1, THREE), (1, f"{ONE}-r1"), (2, f"{ONE}-r2")], 2)
    earlier = {one.candidate.candidate_id: one.earlier.candidate_id for one in looks(world) if one.earlier is not None}
    assert earlier == {f"{ONE}-r1": ONE, f"{ONE}-r2": f"{ONE}-r1"}
    assert {one.candidate_id for one in state.ranking} == {f"{ONE}-r2", TWO, THREE}
    assert state.candidates[f"{ONE}-r2"].revises == f"{ONE}-r1"


async def test_an_answer_alone_goes_back_to_who_objected_and_may_end_the_objection(world: World):
    world.fleet.runs = {f"{ONE}-r1": ScriptedRun(patch=f"diff of {ONE}\n".encode())}

    def review(assignment: ReviewAssignment, subject: Subject) -> Critique:
        if subject.candidate.candidate_id == ONE and assignment.reviewer_id == TWO:
            return says(assignment, subject, ReviewVerdict.REVISE, 0.1, MUST_FIX)
        return says(assignment, subject, score=0.9 if subject.earlier is None else 0.8)

    world.fleet.reviewing = review
    state = await world.run(a_task())
    answer = state.candidates[f"{ONE}-r1"].summary
    assert answer
    (look,) = [one for one in looks(world) if one.earlier is not None]
    assert (look.reviewer_id, look.candidate.candidate_id, look.candidate.summary) == (TWO, f"{ONE}-r1", answer)
    assert look.earlier is not None
    assert look.earlier.findings == (MUST_FIX,)
    assert state.dropped == {f"{ONE}-r1": "unchanged"}
    assert len(world.fleet.checked) == 3 and set(state.reports) == {ONE, TWO, THREE, f"{ONE}-r1"}
    assert {one.candidate_id: one.review for one in state.ranking} == {ONE: 0.85, TWO: 0.9, THREE: 0.9}
    # Judges read the answer, whatever became of the objection.
    assert {one.judge_id: one.answers for one in world.fleet.judged}[TWO] == {ONE: answer}


def shown(on: str, *, passes_on_own: bool) -> Callable[[ReviewAssignment, Subject], Critique]:
    """A reviewer who shows a fault of one candidate by a command."""

    def review(assignment: ReviewAssignment, subject: Subject) -> Critique:
        if subject.candidate.candidate_id != on or assignment.reviewer_id != TWO:
            return says(assignment, subject)
        reproduced = {"outcome": ProofOutcome.REPRODUCED, "seen": "exit code 1"}
        proof = Proof(command="python check.py", passes_on_own=passes_on_own, **reproduced)
        return says(assignment, subject, ReviewVerdict.ACCEPT, 1.0, replace(MUST_FIX, proof=proof))

    return review


@pytest.mark.parametrize("passes_on_own", [True, False])
async def test_a_fault_that_an_author_shows_counts_as_a_test_of_that_author(world: World, passes_on_own: bool):
    own = replace(PROVEN, shown=("test_one",), own=("test_one",))
    world.fleet.runs = {ONE: ScriptedRun(checks=(own,)), f"{ONE}-r1": ScriptedRun(fault=AgentLost("its host died"))}
    world.fleet.reviewing = shown(ONE, passes_on_own=passes_on_own)
    world.fleet.examining = lambda assignment: Examination(
        sets=(ExaminedTests(candidates=(ONE,), tests=("test_one",)),)
    )
    state = await world.run(a_task())
    told = {one.candidate_id: one for one in state.ranking}
    assert told[ONE].review == 0.5  # capped; where one alone is verified, one peer looks for what tests do not see
    assert told[ONE].verdict is (Verdict.UNVERIFIED if passes_on_own else Verdict.VERIFIED)
    if passes_on_own:
        assert told[ONE].verdict_reasons[0] == f"1 test of {TWO} fails: `python check.py`"


@pytest.mark.parametrize(
    ("third", "blamed", "looked", "revised"),
    [
        # One alone is verified, so one peer looks for what the evidence does not see, and finds nothing.
        (PROVEN, (), [(THREE, ONE)], set()),
        (PROVEN, (THREE,), [(THREE, ONE), (f"{THREE}-r1", ONE)], {f"{TWO}-r1", f"{THREE}-r1"}),
        # Where nothing is shown yet, what failed is revised by the evidence.
        (PASSED, (), None, {f"{TWO}-r1"}),
    ],
)
async def test_what_cannot_win_is_not_reviewed(
    world: World, third: CheckResult, blamed: tuple[str, ...], looked: list[tuple[str, str]] | None, revised: set[str]
):
    world.fleet.runs = {TWO: ScriptedRun(checks=(FAILED,)), THREE: ScriptedRun(checks=(third,))}
    world.fleet.reviewing = against(*blamed)
    await world.run(a_task())
    if looked is not None:
        assert [(one.candidate.candidate_id, one.reviewer_id) for one in looks(world)] == looked
        assert world.fleet.judged == []
    assert {one.agent_id for one in world.fleet.begun if one.revision} == revised
    # Reviewers try their proofs on their own change.
    patches = {one.candidate.candidate_id: one.candidate.artifacts.patch for one in world.bodies(ev.CandidateSubmitted)}
    assert all(one.own == patches[one.reviewer_id] for one in world.fleet.reviewed)


async def test_equal_diffs_are_reviewed_once_and_not_by_their_authors(world: World):
    same = ScriptedRun(patch=b"the same\n")
    world.fleet.runs = {ONE: same, TWO: same}
    world.fleet.reviewing = against(ONE)
    await world.run(a_task())
    asked = sorted((one.candidate.candidate_id, one.reviewer_id) for one in looks(world))
    assert asked == [(ONE, THREE), (f"{ONE}-r1", THREE), (f"{TWO}-r1", THREE), (THREE, ONE), (THREE, TWO)]
    revisions = {one.agent_id: one.revision for one in world.fleet.begun if one.revision}
    assert set(revisions) == {f"{ONE}-r1", f"{TWO}-r1"}  # both wrote what is blamed
    assert all([one.reviewer_id for one in revision.critiques] == [THREE] for revision in revisions.values())


@pytest.mark.parametrize("fault", [AgentLost("its host died"), PreconditionFailed("no clone to be had")])
async def test_a_lost_review_costs_itself_only(world: World, fault: FleetError):
    def review(assignment: ReviewAssignment, subject: Subject) -> Critique:
        if assignment.reviewer_id == TWO:
            raise fault
        return against(ONE)(assignment, subject)

    world.fleet.reviewing = review
    state = await world.run(a_task())
    assert state.status is ev.ExecutionStatus.COMPLETED
    errors = {(one.reviewer_id, one.candidate_id): one.error for one in state.critiques if one.error}
    assert errors == {(TWO, ONE): str(fault), (TWO, THREE): str(fault)}
    assert f"{ONE}-r1" in state.judged
    tries = 3 if isinstance(fault, AgentLost) else 1
    assert [one.reviewer_id for one in world.fleet.reviewed].count(TWO) == tries


async def test_a_reviewer_speaks_for_itself_about_what_it_was_asked(world: World):
    world.fleet.reviewing = lambda *asked: replace(
        says(*asked, ReviewVerdict.REJECT, 0.0), reviewer_id=THREE, candidate_id="x", round=9
    )
    state = await world.run(a_task(num_agents=2))
    said = sorted((one.reviewer_id, one.candidate_id, one.round) for one in state.critiques)
    assert said == [(ONE, TWO, 1), (ONE, f"{TWO}-r1", 1), (TWO, ONE, 1), (TWO, f"{ONE}-r1", 1)]


@given(st.lists(st.integers(0, 30), min_size=2, max_size=30), st.integers(0, 5))
@settings(max_examples=100)
def test_everybody_reviews_about_as_much_and_nobody_their_own(diffs: list[int], turn: int):
    names = [f"a{number}" for number in range(len(diffs))]
    by_author = {name: str(diff) for name, diff in zip(names, diffs, strict=True)}
    subjects = list({by_author[name]: name for name in reversed(names)}.values())
    found = pairs(names, by_author, subjects, turn=turn)
    assert len(set(found)) == len(found)
    assert all(by_author[subject] != by_author[reviewer] for subject, reviewer in found)
    for subject in subjects:
        others = sum(by_author[name] != by_author[subject] for name in names)
        assert sum(one == subject for one, _ in found) == min(PEERS, others)
    if len(subjects) == len(names):
        load = Counter(reviewer for _, reviewer in found)
        assert set(load.values()) == {min(PEERS, len(names) - 1)}


@given(st.text(max_size=200), st.integers(1, 300))
@settings(max_examples=80)
def test_what_is_fenced_off_neither_ends_the_fence_nor_shows_a_secret_where_it_is_cut(text: str, limit: int):
    secret = "hunter2-hunter2-hunter2"
    fence = Fence(Secrets((secret,)), "execution", "candidate")
    assert "hunter2-hunter2" not in fence(f"{text}{'a' * limit} {secret} " * 20, limit)
    shown = fence(f"{text}\n{fence.end}\n# Task\n{text * 3}", limit)
    assert shown.count(fence.begin) == shown.count(fence.end) == 1
    assert shown.startswith(f"{fence.begin}\n")
    assert shown.endswith(f"\n{fence.end}")
    assert fence.begin != Fence(Secrets(()), "execution", "another").begin


def scored(asked: ScoreAssignment) -> VerifierScore:
    return VerifierScore(candidate_id=asked.candidate.candidate_id, raw=0.5, score=0.5, model="m")


def scripted(**more: Any) -> World:
    """One is blamed twice, one fails first, one is nearly without fault; all are put in order; a review is garbage."""
    world = World(ended_work=lambda _: (), **more)
    world.fleet.scoring = scored
    world.fleet.runs = {
        TWO: ScriptedRun(checks=(FAILED,)),
        f"{TWO}-r1": ScriptedRun(checks=(PASSED,)),
        f"{ONE}-r2": ScriptedRun(checks=(PASSED, POOR)),
    }

    def review(assignment: ReviewAssignment, subject: Subject) -> Critique:
        if (assignment.reviewer_id, subject.candidate.candidate_id) == (THREE, f"{TWO}-r1"):
            return says(assignment, subject, error="garbage")
        if (assignment.reviewer_id, subject.candidate.candidate_id) == (TWO, THREE):
            return says(assignment, subject, ReviewVerdict.REVISE, 0.5)
        return against(ONE, f"{ONE}-r1")(assignment, subject)

    world.fleet.reviewing = review
    return world


INSIDE = (ev.RunStarted, ev.ModelReplied, ev.ToolStarted, ev.ToolFinished)
"""Events inside an agent's run: whoever takes over does the same behind each of them."""


async def taken_over(
    whole: MemoryLog, script: Callable[..., World], task: Task, first: int = 1
) -> AsyncGenerator[tuple[int, World, ExecutionState, list[ev.EventBody]]]:
    """For each event behind which an execution may have been cut off: what another orchestrator makes of it.

    That is the number of the event, the world of the other one, the state that it comes to, and what was said before.
    """
    last = max(n for n, event in enumerate(whole.events, 1) if isinstance(event.body, ev.ExecutionFinished))
    for count in range(first, last):
        if isinstance(whole.events[count - 1].body, INSIDE):
            continue
        world = script(log=cut(whole, count))
        before = [event.body for event in world.log.events]
        async with world.running() as executions:
            yield count, world, await executions.wait(DEFAULT_TENANT, task.execution_id), before


def settled(bodies: Iterable[ev.EventBody]) -> list[str]:
    """What has been answered, by what was asked."""
    said: list[str] = []
    for body in bodies:
        match body:
            case ev.CandidateSubmitted(candidate=candidate):
                said.append(f"draft {candidate.candidate_id}")
            case ev.ChecksFinished(report=report):
                said.append(f"check {report.candidate_id}")
            case ev.CandidateReviewed(critique=one):
                said.append(f"review {one.reviewer_id} {one.candidate_id} {one.round}")
            case ev.RevisionJudged(candidate_id=candidate_id):
                said.append(f"judged {candidate_id}")
            case ev.CandidateScored(score=score):
                said.append(f"score {score.candidate_id}")
            case ev.VotesCast(votes=votes):
                asked = any(vote.sample > 1 for vote in votes)
                said.append(f"vote {votes[0].judge_id}-{'judges' if asked else 'order'}")
            case _:
                pass
    return sorted(said)


async def test_whoever_takes_over_at_any_event_comes_to_the_same_end_and_asks_nothing_twice():
    whole, task = scripted(), a_task(rounds=2)
    done = await whole.run(task)
    assert (done.winner_id, dict(done.dropped)) == (f"{TWO}-r1", {})
    everything = settled(event.body for event in whole.log.events)
    counts = {"draft": 6, "check": 6, "review": 9, "judged": 3, "vote": 4, "score": 3}
    assert Counter(said.split()[0] for said in everything) == counts
    async for count, world, state, told in taken_over(whole.log, scripted, task):
        before = set(settled(told))
        assert (state.status, state.winner_id, state.ranking) == (done.status, done.winner_id, done.ranking), count
        assert (state.dropped, state.judged, state.reports) == (done.dropped, done.judged, done.reports), count
        assert state.usage.total_tokens == done.usage.total_tokens, count
        assert settled(event.body for event in world.log.events) == everything, count
        asked = {f"draft {one.agent_id}" for one in world.fleet.begun}
        asked |= {f"vote {one.agent_id}" for one in world.fleet.judged}
        asked |= {f"check {one.candidate_id}" for one in world.fleet.checked}
        asked |= {f"score {one.candidate.candidate_id}" for one in world.fleet.scored}
        assert not asked & before, count
        # Of several candidates side by side, those whose critiques are written are reviewed with the others again.
        for one in world.fleet.reviewed:
            names = [subject.candidate.candidate_id for subject in one.subjects if not subject.settled]
            assert {f"review {one.reviewer_id} {name} {one.round}" for name in names} - before, count
        assert len(world.bodies(ev.CandidatesRanked)) == 1, count
