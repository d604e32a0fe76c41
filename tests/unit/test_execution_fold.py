"""The fold of an execution, event by event: what each leaves in the state, and what none may change any more."""

from __future__ import annotations

from dataclasses import replace

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.audit import AuditEntry, SignedHead
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, CheckReport, Delivered, RankedCandidate
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.environment import EnvironmentProposal, EnvironmentReport, EnvironmentRun
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.execution import ExecutionState, fold
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply
from swe_ai_fleet.domain.review import Critique, VerifierScore, Vote
from swe_ai_fleet.domain.run import APPROVAL_TOOL, tool_calls
from swe_ai_fleet.domain.subtask import Derivation, SubtaskOutcome
from swe_ai_fleet.domain.task import ApprovalPolicy, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.test_run import Baseline
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from tests.candidates import a_candidate
from tests.sampling import sample
from tests.tables import table

FIRST, SECOND = "agent-dev-1", "agent-dev-2"
ORCHESTRATOR = ev.EXECUTION_SUBJECT
REPOSITORY = PinnedRepository(tenant="default", location="r", commit="c" * 40)
COUNCIL = Council(council_id="c", role=Role.DEV, members=(CouncilMember(agent_id=FIRST),))
BEGUN = (
    ev.ExecutionStarted(
        task=Task(task_id="t", kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/r")),
        repository=REPOSITORY,
        fingerprint="f",
        council=COUNCIL,
        asked_approval=ApprovalPolicy.PLAN,
    ),
    ev.ExecutionClaimed(generation=1, owner="o"),
)


def said(sequence: int, agent_id: str, body: ev.EventBody) -> ev.StoredEvent:
    writer = ev.Writer(tenant="default", execution_id="e", task_id="t", agent_id=agent_id)
    event = writer.event(body, ordinal=sequence, at=f"2026-01-01T00:00:{sequence:02}+00:00")
    return ev.StoredEvent(sequence=sequence, event=event)


def after(*told: ev.EventBody | tuple[str, ev.EventBody], first: int = 7) -> ExecutionState:
    """The state after an execution's beginning and these; what no agent is named for, the orchestrator says."""
    bodies = [one if isinstance(one, tuple) else (ORCHESTRATOR, one) for one in (*BEGUN, *told)]
    state = fold(said(sequence, *one) for sequence, one in enumerate(bodies, start=first))
    assert state is not None
    return state


def asks(agent_id: str, name: str = "p1") -> tuple[str, ev.EventBody]:
    shown = {"memory": "what was remembered", "diff": "+ a line"}
    request = sample(ApprovalRequest, approval_id=name, agent_id=agent_id, **shown)
    return agent_id, ev.ApprovalRequested(request=request, usage=Usage())


def answered(name: str = "p1", text: str = "") -> ev.EventBody:
    said = ApprovalResolution(approval_id=name, decision=ApprovalDecision.APPROVED, text=text)
    return ev.ApprovalResolved(resolution=said)


def claimed(agent_id: str, generation: int = 1, *, resumes: bool = False) -> tuple[str, ev.EventBody]:
    return agent_id, ev.RunClaimed(generation=generation, host="h", resumes=resumes)


def finished(agent_id: str) -> tuple[str, ev.EventBody]:
    return agent_id, ev.RunFinished(
        stop_reason=StopReason.FINAL_ANSWER, artifacts=Artifacts(), usage=Usage(), audit_head="h"
    )


def replied(agent_id: str, content: str) -> tuple[str, ev.EventBody]:
    message = AssistantMessage(content=content)
    reply = ModelReply(message=message, finish_reason="stop", usage=Usage(prompt_tokens=547))
    return agent_id, ev.ModelReplied(step=1, reply=reply, duration_ms=1)


def ended(status: ev.ExecutionStatus = ev.ExecutionStatus.COMPLETED) -> ev.EventBody:
    return ev.ExecutionFinished(status=status, winner_id="", usage=Usage(), duration_ms=1)


def test_candidates_reports_and_how_it_ended_stand_in_the_state() -> None:
    candidate = a_candidate("c")
    report = CheckReport(candidate_id="c")
    bodies: list[ev.EventBody] = [
        ev.CandidateSubmitted(candidate=candidate),
        ev.ChecksFinished(report=report),
        ev.RunLost(lost_agent_id=SECOND, reason="its process died"),
        ev.CandidatesRanked(ranking=(), winner_id="c"),
        ev.ExecutionFinished(status=ev.ExecutionStatus.COMPLETED, winner_id="c", duration_ms=9),
        ev.ResultPublished(),
    ]
    state = after(claimed(SECOND), *bodies)
    assert (state.execution_id, state.task, state.repository) == ("e", BEGUN[0].task, REPOSITORY)
    assert (state.council, state.asked_approval, state.last_sequence) == (COUNCIL, ApprovalPolicy.PLAN, 15)
    assert (state.status, state.winner_id, state.generation, state.owner) == (ev.ExecutionStatus.COMPLETED, "c", 1, "o")
    assert (state.candidates, state.reports) == ({"c": candidate}, {"c": report})
    assert (state.agents[SECOND].status, state.agents[SECOND].stop_reason) == ("lost", "lost")
    assert (state.started_at[17:19], state.finished_at[17:19], state.updated_at[17:19]) == ("07", "14", "15")
    assert state.result_published and ORCHESTRATOR not in state.agents
    assert [fold(()), fold([said(7, ORCHESTRATOR, BEGUN[1])])] == [None, None]
    begun = fold([said(7, ORCHESTRATOR, BEGUN[0])])
    assert begun is not None and begun.status is ev.ExecutionStatus.PENDING
    assert fold([said(7, ORCHESTRATOR, BEGUN[0]), said(8, ORCHESTRATOR, BEGUN[0])]) == begun
    # An agent that calls its execution erased is not believed.
    erased = sample(ev.ExecutionErased)
    assert fold([said(7, ORCHESTRATOR, BEGUN[0]), said(8, ORCHESTRATOR, erased)]) is None
    assert after((FIRST, erased)).task == BEGUN[0].task


def test_an_event_at_or_before_the_first_ones_place_is_no_news_and_the_first_reason_to_cancel_stays() -> None:
    state = fold([said(7, ORCHESTRATOR, BEGUN[0]), said(7, ORCHESTRATOR, ev.CancelRequested(reason="old"))])
    assert state is not None and not state.cancel_requested
    state = after(ev.CancelRequested(reason="too dear"), ev.CancelRequested(reason="again"))
    assert (state.cancel_requested, state.cancel_reason) == (True, "too dear")


def test_a_decided_request_lets_go_of_what_was_there_to_decide_by() -> None:
    state = after(claimed(FIRST), asks(FIRST), claimed(SECOND), asks(SECOND, "p2"), answered("p1", "go"))
    assert (state.requests["p1"].memory, state.requests["p1"].diff) == ("", "")
    assert (state.requests["p2"].memory, state.requests["p2"].diff) == ("what was remembered", "+ a line")
    assert state.resolutions["p1"].text == "go"
    assert after(asks(FIRST), answered("p1", "first"), answered("p1", "later")).resolutions["p1"].text == "first"
    early = fold([said(7, ORCHESTRATOR, BEGUN[0]), said(8, ORCHESTRATOR, answered())])
    assert early is not None and early.status is ev.ExecutionStatus.PENDING
    # Who was not let decide is remembered.
    refused = [ev.ApprovalRefused(approval_id="p1", decision=ApprovalDecision.APPROVED, caller=who) for who in "ab"]
    assert after(asks(FIRST), *refused).refused == {("p1", "a"), ("p1", "b")}


def test_an_agent_is_at_work_again_once_nothing_of_its_waits() -> None:
    waiting = after(claimed(FIRST), asks(FIRST), claimed(SECOND), asks(SECOND, "p2"))
    assert waiting.status is ev.ExecutionStatus.AWAITING_APPROVAL
    one = after(claimed(FIRST), asks(FIRST), claimed(SECOND), asks(SECOND, "p2"), answered("p1"))
    assert one.status is ev.ExecutionStatus.AWAITING_APPROVAL
    assert [one.agents[name].status for name in (FIRST, SECOND)] == ["running", "awaiting_approval"]
    both = after(claimed(FIRST), asks(FIRST), answered("p1"))
    assert both.status is ev.ExecutionStatus.IN_PROGRESS


@table(
    "gone",
    [finished(FIRST), claimed(FIRST, 2), (ORCHESTRATOR, ev.RunLost(lost_agent_id=FIRST, reason="host gone"))],
)
def test_who_is_gone_waits_for_nothing(gone: tuple[str, ev.EventBody]) -> None:
    state = after(claimed(FIRST), asks(FIRST, "p0"), answered("p0"), asks(FIRST), gone)
    assert state.status is ev.ExecutionStatus.IN_PROGRESS
    assert state.pending == ()
    # What was decided stays: it is part of what happened.
    assert set(state.requests) == {"p0"}
    beside = after(claimed(FIRST), asks(FIRST), claimed(SECOND), asks(SECOND, "p2"), gone)
    assert [request.approval_id for request in beside.pending] == ["p2"]
    assert beside.status is ev.ExecutionStatus.AWAITING_APPROVAL
    # Who goes on still waits.
    on = after(claimed(FIRST), asks(FIRST), claimed(FIRST, 2, resumes=True))
    assert [request.approval_id for request in on.pending] == ["p1"]


def test_attempts_are_counted_when_a_lost_agent_is_assigned_anew_and_begins_again() -> None:
    began = (FIRST, ev.RunStarted(role="DEV", model="m", messages=(), tools=()))
    lost = claimed(FIRST), began, ev.RunLost(lost_agent_id=FIRST, reason="host gone")
    again = *lost, ev.RunReassigned(lost_agent_id=FIRST, reason="host gone", attempt=2)
    for told, status, attempt, generation in (
        (lost, "lost", 1, 1),
        (again, "running", 2, 1),
        ((*again, claimed(FIRST, 2), began), "running", 2, 2),
    ):
        agent = after(*told).agents[FIRST]
        assert (agent.status, agent.attempt, agent.generation) == (status, attempt, generation), told
    # Who was lost before it began stays lost at the end.
    assert after(ev.RunLost(lost_agent_id=SECOND, reason="gone"), ended()).agents[SECOND].status == "lost"


def test_an_opinion_given_again_takes_the_place_of_the_first() -> None:
    def review(score: float, at: int = 1) -> ev.EventBody:
        return ev.CandidateReviewed(critique=Critique(reviewer_id="r", candidate_id=FIRST, round=at, score=score))

    def votes(choice: str, judge: str = "j") -> ev.EventBody:
        return ev.VotesCast(votes=(Vote(judge_id=judge, sample=1, order=(FIRST, SECOND), choice=choice),))

    state = after(review(0.1), review(0.9), review(0.5, 2), votes(FIRST), votes(FIRST, "k"), votes(SECOND))
    assert [(one.round, one.score) for one in state.critiques] == [(1, 0.9), (2, 0.5)]
    assert {vote.judge_id: vote.choice for vote in state.votes} == {"j": SECOND, "k": FIRST}
    assert len(state.votes) == 2


def test_what_comes_behind_the_end_changes_nothing_but_the_place_in_the_log() -> None:
    end = after(claimed(FIRST), ended())
    late = (ev.CancelRequested(reason="late"), finished(SECOND), replied(FIRST, "late"), replied(SECOND, "late"))
    later = after(claimed(FIRST), ended(), *late)
    assert later.last_sequence == end.last_sequence + len(late)
    assert (later.cancel_requested, later.agents) == (False, end.agents)
    assert later.status is ev.ExecutionStatus.COMPLETED
    # But for what people have delivered then.
    first, second = sample(ev.CandidateDelivered), sample(ev.CandidateDelivered, by="bob")
    assert after(ended(), first, second).hand_deliveries == (first, second)


def test_a_step_is_told_with_its_time_and_heard_again_counts_once() -> None:
    steps = [said(9, *replied(FIRST, "hm")), said(10, *replied(FIRST, "well"))]
    begun = [said(sequence, *one) for sequence, one in enumerate([(ORCHESTRATOR, BEGUN[0]), claimed(FIRST)], start=7)]
    state, again = fold([*begun, *steps]), fold([*begun, *steps, *steps, steps[-1]])
    assert state is not None and state == again
    assert (state.last_sequence, state.updated_at[17:19], state.spent.prompt_tokens) == (10, "10", 2 * 547)


def test_a_run_is_followed_from_its_claim_to_its_end() -> None:
    def entry(outcome: Outcome, digest: str, tool: str = "files") -> AuditEntry:
        return sample(AuditEntry, outcome=outcome, hash=digest, tool=tool, operation="read")

    result = ToolResult(success=True, operation="files_read")
    reply = ModelReply(
        message=AssistantMessage(content="hm"), finish_reason="stop", usage=Usage(prompt_tokens=5, model_calls=1)
    )
    bodies: list[ev.EventBody] = [
        ev.RunClaimed(generation=3, host="h"),
        ev.RunStarted(role="DEV", model="m", messages=(), tools=()),
        ev.ModelReplied(step=2, reply=reply, duration_ms=1),
        ev.ToolStarted(entry=entry(Outcome.STARTED, "h1")),
        ev.ToolFinished(entry=entry(Outcome.SUCCESS, "h2", "git"), result=result),
        ev.ToolFinished(entry=entry(Outcome.SUCCESS, "h3", APPROVAL_TOOL), result=result),
        ev.RunFinished(stop_reason=StopReason.FINAL_ANSWER, artifacts=Artifacts(), usage=Usage(), audit_head=""),
    ]
    told = [after(*[(FIRST, body) for body in bodies[:count]]).agents[FIRST] for count in range(1, len(bodies) + 1)]
    assert [(one.status, one.generation) for one in told] == [("running", 3)] * 6 + [("finished", 3)]
    assert [(one.last_tool, one.last_outcome) for one in told[2:5]] == [
        ("", ""),
        ("files_read", Outcome.STARTED),
        ("git_read", Outcome.SUCCESS),
    ]
    assert [call.hash for call in tool_calls(said(number, FIRST, body) for number, body in enumerate(bodies))] == ["h2"]
    assert [one.audit_head for one in told[3:]] == ["", "h2", "h3", "h3"]
    # A decision is no call of the agent's; what a run does not say of its usage is what was seen of it.
    ended = told[-1]
    assert (ended.model, ended.step, ended.stop_reason) == ("m", 2, StopReason.FINAL_ANSWER)
    assert ended.usage == Usage(prompt_tokens=5, model_calls=1, tool_calls=1)
    whole = ev.RunFinished(
        stop_reason=StopReason.FINAL_ANSWER, artifacts=Artifacts(), usage=Usage(model_calls=9), audit_head="h9"
    )
    said_all = after(*[(FIRST, body) for body in (*bodies[:-1], whole)]).agents[FIRST]
    assert (said_all.usage, said_all.audit_head) == (Usage(model_calls=9), "h9")
    resumed = after(*[(FIRST, body) for body in (*bodies, ev.RunClaimed(generation=4, host="h", resumes=True))])
    on = resumed.agents[FIRST]
    assert (on.status, on.stop_reason, on.generation, on.step, on.audit_head) == ("running", "", 4, 2, "h3")
    anew = after(*[(FIRST, body) for body in (*bodies, ev.RunClaimed(generation=4, host="h"))]).agents[FIRST]
    assert (anew.model, anew.generation, anew.step, anew.usage) == ("m", 4, 0, Usage())


def test_a_run_waits_for_a_model_server_until_it_says_that_it_does_no_more_is_claimed_or_ends() -> None:
    def since(*told: tuple[str, ev.EventBody]) -> str:
        return after(claimed(FIRST), (FIRST, ev.ModelAwaited()), *told).agents[FIRST].model_awaited_since

    assert since() == since(replied(FIRST, "hm")) == "2026-01-01T00:00:10+00:00"
    over = (FIRST, ev.ModelAwaited(waited_ms=5)), claimed(FIRST, 2, resumes=True), finished(FIRST)
    assert [since(told) for told in over] == ["", "", ""]


@table(
    ("status", "reason"),
    [(ev.ExecutionStatus.CANCELLED, StopReason.CANCELLED), (ev.ExecutionStatus.COMPLETED, StopReason.LOST)],
)
def test_who_still_waits_at_the_end_has_ended_with_it(status: ev.ExecutionStatus, reason: StopReason) -> None:
    others = (asks("node", "p2"), asks("answered", "p3"), answered("p3"))
    state = after(claimed(FIRST), claimed(SECOND), asks(SECOND), *others, ended(status))
    assert [state.agents[name].status for name in (FIRST, SECOND, "node")] == ["running", "finished", "finished"]
    assert state.agents["answered"].status == "finished"
    assert (state.agents[SECOND].stop_reason, state.pending) == (reason, ())
    # What is spent is spent, also where the end of a run was never told.
    spent = after(claimed(FIRST), replied(FIRST, ""), ended(status))
    assert spent.usage == spent.agents[FIRST].usage == spent.spent == Usage(prompt_tokens=547)
    # Who takes an ended execution up has to tell of its end, and does not open it again.
    later = after(ended(status), ev.ExecutionClaimed(generation=2, owner="p"), ev.ResultPublished())
    assert (later.status, later.generation, later.owner, later.result_published) == (status, 2, "p", True)


def test_what_is_found_out_planned_and_delivered_stands_in_the_state() -> None:
    baseline, run, checklist = sample(ev.BaselineFinished), sample(ev.EnvironmentRunFinished), sample(ev.ChecklistMade)
    merged = PinnedRepository(tenant="default", location="r", commit="d" * 40)
    context, derivation = (
        GatheredContext(text="known", tokens=1, version="v"),
        Derivation(derivation_id="d", subtasks=()),
    )
    delivered = ev.WinnerDelivered(
        delivered=Delivered(branch="fleet/t", commit_sha="d" * 40), report=CheckReport(candidate_id=FIRST)
    )
    end = ev.ExecutionFinished(
        status=ev.ExecutionStatus.COMPLETED, winner_id=FIRST, usage=Usage(model_calls=2), duration_ms=7, error="but"
    )
    state = after(
        *(baseline, run, checklist),
        ev.ContextGathered(context=context),
        ev.CandidatesRanked(ranking=(), winner_id=SECOND),
        ev.RevisionJudged(candidate_id="kept", revises=FIRST, kept=True, reason="better"),
        ev.RevisionJudged(candidate_id="worse", revises=FIRST, kept=False, reason="broke the tests"),
        ev.SubtasksDerived(derivation=derivation),
        ev.SubtaskStarted(subtask_id="a", execution_id="e-a"),
        ev.SubtaskEnded(outcome=SubtaskOutcome(subtask_id="a", status="COMPLETED"), repository=merged),
        ev.SubtaskEnded(outcome=SubtaskOutcome(subtask_id="b", status="FAILED")),
        *(delivered, end),
    )
    assert (state.baseline, state.baseline_error) == (baseline.baseline, baseline.error) and baseline.error
    assert (state.environment_run, state.checklist, state.context) == (run.run, checklist.checklist, context)
    assert (state.judged, dict(state.dropped)) == ({"kept", "worse"}, {"worse": "broke the tests"})
    assert (state.derivation, dict(state.subtask_executions)) == (derivation, {"a": "e-a"})
    assert (set(state.subtask_outcomes), state.integration) == ({"a", "b"}, merged)
    assert (state.delivered, state.delivery_report) == (delivered.delivered, delivered.report)
    assert (state.winner_id, state.usage, state.duration_ms, state.error) == (FIRST, end.usage, 7, "but")
    assert after(ev.CandidatesRanked(ranking=(), winner_id=SECOND)).winner_id == SECOND


def test_who_is_stopped_has_ended_and_what_is_being_checked_is_known_until_the_end() -> None:
    state = after(claimed(FIRST), ev.RunStopped(stopped_agent_id=FIRST, reason="nothing left to win"))
    agent = state.agents[FIRST]
    assert (agent.status, agent.stop_reason) == ("finished", StopReason.CANCELLED)
    assert state.stopped == {FIRST: "nothing left to win"}
    started = ev.ChecksStarted(candidate_id="a", command="make test"), ev.ChecksStarted(candidate_id="", command="")
    assert after(*started).checking["a"].command == "make test"
    for told, left in (
        (ev.BaselineFinished(), {"a"}),
        (ev.ChecksFinished(report=CheckReport(candidate_id="a")), {""}),
        (sample(ev.WinnerDelivered), set[str]()),
        (ended(), set[str]()),
    ):
        assert set(after(*started, told).checking) == left, told


def test_the_latest_signed_head_counts_and_no_agents_own() -> None:
    places = ((1, 9, "h"), (2, 1, "h"), (2, 1, "other"), (1, 10, "h"))
    heads = [SignedHead(agent_id=FIRST, run=run, entries=count, hash=digest) for run, count, digest in places]
    assert after(*(ev.AuditHeadSigned(head=head) for head in heads)).signed_heads == {FIRST: heads[1]}
    assert after((FIRST, ev.AuditHeadSigned(head=heads[0]))).signed_heads == {}


def test_scores_examinations_and_what_is_kept_of_the_refused_stand_in_the_state() -> None:
    scores = [ev.CandidateScored(score=VerifierScore(candidate_id=name, score=0.5)) for name in (FIRST, SECOND)]
    examined = [ev.CandidatesExamined(examination=Examination(duration_ms=number)) for number in range(3)]
    kept = sample(ev.RefusedKept)
    state = after(*scores, *examined, kept)
    assert (list(state.scores.values()), state.refused_kept) == ([told.score for told in scores], kept)
    assert state.examinations == tuple(told.examination for told in examined)
    assert (state.examination, after().examination) == (examined[-1].examination, None)


def test_reports_have_the_verdict_of_the_ranking_and_the_best_one_is_the_winners_or_that_of_the_branch() -> None:
    reports = [ev.ChecksFinished(report=CheckReport(candidate_id=name)) for name in ("a", "twin", "b")]
    first = sample(RankedCandidate, candidate_id="a", duplicates=("twin", "unchecked"))
    ranking = first, sample(RankedCandidate, candidate_id="b", verdict_reasons=())
    nobody, second = (after(*reports, ev.CandidatesRanked(ranking=ranking, winner_id=name)) for name in ("", "b"))
    told = {name: (report.verdict, report.reasons) for name, report in nobody.reports.items()}
    own, apart = CheckReport(candidate_id="b"), (first.verdict, first.verdict_reasons)
    assert told == {"a": apart, "twin": apart, "b": (own.verdict, own.reasons)}
    assert [state.best_report for state in (after(*reports), nobody, second)] == [None, nobody.reports["a"], own]
    delivered = sample(ev.WinnerDelivered)
    assert after(*reports, ev.CandidatesRanked(ranking=ranking), delivered).best_report == delivered.report
    # Without a ranking the audit is told by the first chain that there is.
    assert after(claimed(FIRST), finished(SECOND)).audit_head == "h"


def test_what_an_environment_run_found_out_is_proposed_where_it_is_used() -> None:
    run = sample(EnvironmentRun, kept=True)
    setup, command = EnvironmentProposal(setup=("make deps",)), EnvironmentProposal(test_command="make test")
    baselines = [
        ev.BaselineFinished(baseline=Baseline(commit="c", report=EnvironmentReport(learned=learned)))
        for learned in (setup, command, EnvironmentProposal(notes="nothing to add"), None)
    ]
    assert [after(told).proposal for told in baselines] == [setup, command, None, None]
    used, unused = (ev.EnvironmentRunFinished(run=replace(run, kept=kept)) for kept in (True, False))
    found = [after(*told).proposal for told in ((), (used,), (unused,), (used, baselines[0]), (unused, baselines[0]))]
    assert found == [None, run.proposal, None, run.proposal, setup] and run.proposal is not None
