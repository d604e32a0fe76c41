"""A deliberation: several agents solve one task, checks and peers judge the candidates, evidence decides first.

Submitted patches are judged in the same way, without agents: environment, baseline, evidence, one ranking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.prompting import Fence
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.audit import GENESIS
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckReport, RankedCandidate, Verdict
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import CandidatesRanked, CandidateSubmitted, ExecutionStatus, RunStopped
from swe_ai_fleet.domain.review import Vote
from swe_ai_fleet.domain.task import SubmittedPatch
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.checking import Checking
from swe_ai_fleet.orchestrator.councils import assignments, seated
from swe_ai_fleet.orchestrator.evidence.patch import PatchUnreadable, parse_patch
from swe_ai_fleet.orchestrator.execution_context import Ending, ExecutionContext
from swe_ai_fleet.orchestrator.groundwork import Groundwork
from swe_ai_fleet.orchestrator.judging import MAX_JUDGES, Contest, Verifier, vote
from swe_ai_fleet.orchestrator.peer_review import Author, PeerReview
from swe_ai_fleet.orchestrator.ranking import rank
from swe_ai_fleet.orchestrator.runs import TaskSpending

_TRIED = (
    "Other agents have tried this task, and nothing shows yet that one of them is right. What they did is no example: "
    "solve the task your own way, and show by a test that fails without your change that it works."
)
_TRIED_CHARS = 1_500
_MOST_FILES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The result of a deliberation.

    `candidates` are those that were ranked: each author's last one that was not dropped. `losses` are the reasons of
    runs without a candidate, `rejections` those of runs that people ended. `usage` covers everything: drafts, reviews,
    revisions (dropped ones, too), votes. `reports` is the evidence by candidate.
    """

    candidates: tuple[Candidate, ...]
    ranking: tuple[RankedCandidate, ...]
    losses: tuple[str, ...]
    usage: Usage
    rejections: tuple[str, ...] = ()
    reports: Mapping[str, CheckReport] = field(default_factory=dict[str, CheckReport])

    @property
    def winner(self) -> Candidate | None:
        """The best candidate, if the evidence accepts it."""
        return self.best if self.ranking and self.ranking[0].accepted else None

    @property
    def best(self) -> Candidate | None:
        """The first of the ranking, accepted or not; None where nothing is ranked."""
        first = self.ranking[0].candidate_id if self.ranking else ""
        return next((candidate for candidate in self.candidates if candidate.candidate_id == first), None)

    @property
    def timed_out(self) -> bool:
        """Whether every run with a candidate ran into its timeout."""
        return bool(self.candidates) and all(c.stop_reason is StopReason.TIMEOUT for c in self.candidates)


@dataclass(kw_only=True)
class Deliberation:
    """One deliberation. Results that an earlier driver recorded are reused."""

    work: ExecutionContext
    _losses: list[str] = field(default_factory=list[str])
    _entries: dict[str, Author] = field(default_factory=dict[str, Author])
    _solving: dict[str, asyncio.Task[Candidate]] = field(default_factory=dict[str, asyncio.Task[Candidate]])
    _convincing: str = ""
    _stopping: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rejected: list[Candidate] = field(default_factory=list[Candidate])

    def __post_init__(self) -> None:
        self._spending = TaskSpending(task=self.work.task)

    async def run(self) -> Conclusion:
        """Have every agent solve the task, and the candidates checked, reviewed, revised and ranked.

        A lost run costs only its own candidate. An agent that waits for a person delays only the reviews.
        """
        async with Groundwork(work=self.work) as groundwork:
            self._checking = Checking(work=self.work, groundwork=groundwork)
            drafts = await self._drafts()
            reviewing = PeerReview(work=self.work, checking=self._checking, spending=self._spending)
            entries = await reviewing.run(drafts)
            candidates = tuple(entry.candidate for entry in entries)
            critiques = reviewing.critiques_of(entries)
            reports = await self._checking.beside_each_other(candidates, critiques)
            contest = Contest(
                candidates=candidates,
                reports=reports,
                critiques=critiques,
                answers=reviewing.answers,
                votes=tuple(reviewing.votes.values()),
                behaviours=await self._checking.behaviours(candidates),
            )
            ranking = await self._ranking(contest)
        return Conclusion(
            candidates=candidates,
            ranking=ranking,
            losses=tuple(self._losses),
            usage=self._spending.usage + self._checking.usage + groundwork.usage,
            rejections=tuple(candidate.error for candidate in self._rejected),
            reports=reports,
        )

    async def _ranking(self, contest: Contest) -> tuple[RankedCandidate, ...]:
        """Have judges vote, and record the ranking; the candidates from best to worst."""
        state = self.work.known
        if state.ranking:
            for outcome in (*state.votes, *state.scores.values()):
                self._spending.usage += outcome.usage
            return state.ranking
        if self.work.deps.outcomes is not None:
            verifier = Verifier(outcomes=self.work.deps.outcomes)
            contest = replace(contest, scores=await verifier.scores(self.work.runs, self._spending, contest))
        votes: tuple[Vote, ...] = ()
        if (task := self._spending.granted(MAX_JUDGES)) is not None:
            votes = await vote(self.work.runs, task, contest)
        for outcome in votes:
            self._spending.usage += outcome.usage
        ranking = rank(
            contest.candidates,
            contest.reports,
            critiques=contest.critiques,
            votes=votes,
            behaviours=contest.behaviours,
            scores=contest.scores,
            needs_proof=self.work.task.constraints.require_verified,
        )
        winner_id = ranking[0].candidate_id if ranking and ranking[0].accepted else ""
        await self.work.journal.append(CandidatesRanked(ranking=ranking, winner_id=winner_id))
        return ranking

    async def _drafts(self) -> tuple[Author, ...]:
        """Each agent's first candidate, checked, in the order of the council: the same under every driver.

        While no candidate is convincing, further agents start, each time as many as there are already, with a summary
        of the earlier attempts. If the task allows that, running agents are stopped once one is convincing.
        """
        task, council, state = self.work.task, self.work.known.council, self.work.known
        waiting = list(assignments(task, self.work.repository, council))
        entries: list[Author] = []
        size, lessons = seated(task, council).num_agents, ""
        while waiting:
            wave = [replace(assignment, background=lessons) for assignment in waiting[:size]]
            waiting = waiting[size:]
            async with asyncio.TaskGroup() as group:
                drafts = [group.create_task(self._draft(assignment)) for assignment in wave]
            entries += [entry for draft in drafts if (entry := draft.result()) is not None]
            over = state.ranking and not any(assignment.agent_id in state.agents for assignment in waiting)
            if not waiting or over:
                break
            candidates = [entry.candidate for entry in entries]
            reports = await self._checking.beside_each_other(candidates)
            if any(map(convincing, reports.values())):
                break
            # A candidate submitted at the same time may have shown that it is not.
            self._convincing = ""
            size, lessons = max(1, len(entries)), earlier_attempts(candidates, reports, task.execution_id)
        for candidate in self._rejected:
            self._spending.usage += candidate.usage
        await self._count_stopped()
        for entry in entries:
            self._spending.usage += entry.candidate.usage
        return tuple(entries)

    async def _draft(self, assignment: CodingAssignment) -> Author | None:
        """One agent's candidate; None where it was lost, or ended by a person."""
        candidate = self.work.known.candidates.get(assignment.agent_id)
        if candidate is None:
            if assignment.agent_id in self.work.known.stopped:
                return None
            if self._too_late(assignment.agent_id):
                self._losses.append("its process was lost")
                return None
            candidate = await self._solved(assignment)
            if isinstance(candidate, FleetError):
                self._losses.append(str(candidate))
                return None
            if candidate is None:
                return None
            if candidate.stop_reason is StopReason.REJECTED:
                self._rejected.append(candidate)
                return None
            await self.work.journal.append(CandidateSubmitted(candidate=candidate))
        await self._checking.report(candidate)
        entry = self._entries[assignment.agent_id] = Author(assignment=assignment, candidate=candidate)
        if self.work.task.max_agents:
            await self._stop_needless()
        return entry

    async def _solved(self, assignment: CodingAssignment) -> Candidate | FleetError | None:
        """An agent's candidate, or the fault that its run was lost by; None where it was stopped. Raises Fenced."""
        if self._convincing:
            return await self._stop(assignment.agent_id)
        solving = asyncio.create_task(self.work.runs.solve(assignment))
        self._solving[assignment.agent_id] = solving
        try:
            return await self.work.runs.or_loss(assignment.agent_id, solving)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._convincing or (current is not None and current.cancelling()):
                raise
            return None
        finally:
            del self._solving[assignment.agent_id]

    async def _stop_needless(self) -> None:
        """Stop the agents that are still solving, once one of the candidates is convincing."""
        async with self._stopping:
            candidates = [self._entries[name].candidate for name in sorted(self._entries)]
            reports = await self._checking.beside_each_other(candidates)
            convincing_ids = (
                candidate.candidate_id for candidate in candidates if convincing(reports[candidate.candidate_id])
            )
            if not self._convincing and (reason := next(convincing_ids, "")):
                self._convincing = reason
                for name, solving in list(self._solving.items()):
                    await self._stop(name)
                    solving.cancel()

    async def _stop(self, agent_id: str) -> None:
        """Record that an agent is stopped, before stopping it, so that no later driver starts it again."""
        reason = f"{self._convincing} is convincing; no further candidate is needed"
        await self.work.journal.append(RunStopped(stopped_agent_id=agent_id, reason=reason))

    async def _count_stopped(self) -> None:
        """Add the usage of stopped agents, which only the log has."""
        if self._convincing or self.work.known.stopped:
            state = await self.work.runs.approvals.refresh()
            for name in state.stopped.keys() - self._entries.keys():
                self._spending.usage += state.agents[name].usage

    def _too_late(self, agent_id: str) -> bool:
        """Whether a lost run can no longer start again, because the others were reviewed or ranked without it."""
        known = self.work.known
        if (agent := known.agents.get(agent_id)) is None or agent.status != "lost":
            return False
        revised = any(candidate.revises for candidate in known.candidates.values())
        return bool(known.critiques or known.ranking or revised)


def convincing(report: CheckReport) -> bool:
    """Whether a candidate is so well verified that further ones are not worth their cost.

    It is, where its evidence is not its author's (an existing test, or a check of the task), or where it passes the
    tests of another author, who has not seen it, and fails no other author's.
    """
    if report.verdict is not Verdict.VERIFIED:
        return False
    foreign = report.foreign
    return not report.shown_by_itself or (foreign is not None and foreign.passed > 0 and not foreign.failing)


def earlier_attempts(candidates: Sequence[Candidate], reports: Mapping[str, CheckReport], seed: str) -> str:
    """The text for later agents about candidates that are not convincing: files, evidence, authors' summaries."""
    if not candidates:
        return ""
    fence = Fence(_masked, seed, *(candidate.candidate_id for candidate in candidates))
    sections = [_TRIED, fence.warning]
    for candidate in candidates:
        report, artifacts = reports[candidate.candidate_id], candidate.artifacts
        files = ", ".join(artifacts.files_changed[:_MOST_FILES]) or "no file"
        lines = (
            f"{report.verdict_word}: {'; '.join(report.reasons)}" if report.reasons else report.verdict_word,
            *(f"fails {failure}" for failure in (report.foreign.failures if report.foreign else ())),
            f"changed {files} ({artifacts.insertions} lines added, {artifacts.deletions} removed)",
            f"its summary: {candidate.summary}",
        )
        sections.append(fence("\n".join(lines), _TRIED_CHARS))
    return "\n".join(sections)


def _masked(text: str) -> str:
    """The text itself: texts of the log were masked when they were written."""
    return text


def without_winner(verdict: Conclusion) -> Ending:
    """The ending of a deliberation without a winner."""
    if verdict.rejections and not verdict.candidates and not verdict.losses:
        reasons = "; ".join(dict.fromkeys(verdict.rejections))
        return Ending(status=ExecutionStatus.REJECTED, error=reasons, usage=verdict.usage)
    if not verdict.candidates:
        reasons = "; ".join(dict.fromkeys((*verdict.losses, *verdict.rejections)))
        error = f"no patch: {reasons}"
        return Ending(status=ExecutionStatus.FAILED, error=error, usage=verdict.usage)
    if verdict.timed_out:
        return Ending(status=ExecutionStatus.TIMEOUT, error="every agent ran out of time", usage=verdict.usage)
    first, best = verdict.ranking[0], verdict.best
    name = f"{first.candidate_id} ({best.error})" if best is not None and best.error else first.candidate_id
    error = f"no candidate passed; the best, {name}: {first.reason}"
    return Ending(status=ExecutionStatus.NO_WINNER, error=error, usage=verdict.usage)


def stands(report: CheckReport) -> bool:
    """Whether no required check of a branch failed. A branch on which nothing can be run has no failure either."""
    return not any(check.required for check in report.failed)


@dataclass(frozen=True, kw_only=True)
class PatchJudgement:
    """The judgement of the patches of one task."""

    work: ExecutionContext

    async def run(self) -> Conclusion:
        """Gather the evidence about every patch and rank them. Raises Fenced, Unavailable."""
        async with Groundwork(work=self.work) as groundwork:
            checking = Checking(work=self.work, groundwork=groundwork)
            async with asyncio.TaskGroup() as group:
                checked = [group.create_task(self._checked(patch, checking)) for patch in self.work.task.patches]
        candidates = tuple(task.result() for task in checked)
        ranking, reports = self.work.known.ranking, checking.reports
        if not ranking:
            behaviours = await checking.behaviours(candidates)
            reports = await checking.beside_each_other(candidates)
            ranking = rank(
                candidates,
                reports,
                behaviours=behaviours,
                needs_proof=self.work.task.constraints.require_verified,
            )
            winner_id = ranking[0].candidate_id if ranking[0].accepted else ""
            await self.work.journal.append(CandidatesRanked(ranking=ranking, winner_id=winner_id))
        return Conclusion(candidates=candidates, ranking=ranking, losses=(), usage=checking.usage, reports=reports)

    async def _checked(self, patch: SubmittedPatch, checking: Checking) -> Candidate:
        candidate = self.work.known.candidates.get(patch.name)
        if candidate is None:
            candidate = await self._candidate(patch)
            await self.work.journal.append(CandidateSubmitted(candidate=candidate))
        await checking.report(candidate)
        return candidate

    async def _candidate(self, patch: SubmittedPatch) -> Candidate:
        files, added, removed = await self._size(patch)
        return Candidate(
            candidate_id=patch.name,
            agent_id=patch.name,
            role=self.work.task.role,
            summary=patch.summary,
            stop_reason=StopReason.FINAL_ANSWER,
            artifacts=Artifacts(patch=patch.patch, files_changed=files, insertions=added, deletions=removed),
            usage=Usage(),
            audit_head=GENESIS,
            submitted_at=now(),
        )

    async def _size(self, patch: SubmittedPatch) -> tuple[tuple[str, ...], int, int]:
        """Files, lines added, lines removed; nothing where the patch cannot be read, which its evidence will say."""
        try:
            parsed = await asyncio.to_thread(parse_patch, await self.work.deps.blobs.get(patch.patch))
        except (PatchUnreadable, FleetError):
            return (), 0, 0
        lines = {sign: sum(1 for file in parsed.files for _ in file.lines(sign)) for sign in "+-"}
        return tuple(file.path for file in parsed.files), lines["+"], lines["-"]
