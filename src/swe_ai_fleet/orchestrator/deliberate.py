"""A deliberation: several agents solve one task, each candidate is checked as it comes in, evidence ranks them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import (
    Assignment,
    Candidate,
    CheckAssignment,
    CheckKind,
    CheckReport,
    CheckResult,
    RankedCandidate,
)
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.event import CandidatesRanked, CandidateSubmitted, ChecksFinished, RunLost
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.councils import assignments
from swe_ai_fleet.orchestrator.selection import diff_key, rank
from swe_ai_fleet.ports import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a deliberation came to.

    `losses` are the reasons of runs that left no candidate, `rejections` those of runs that people ended.
    """

    candidates: tuple[Candidate, ...]
    ranking: tuple[RankedCandidate, ...]
    losses: tuple[str, ...]
    usage: Usage
    rejections: tuple[str, ...] = ()

    @property
    def winner(self) -> Candidate | None:
        """The best candidate, if the evidence accepts it."""
        if not self.ranking or not self.ranking[0].accepted:
            return None
        return next(c for c in self.candidates if c.candidate_id == self.ranking[0].candidate_id)

    @property
    def timed_out(self) -> bool:
        """Whether every run that left something was stopped by the clock."""
        return bool(self.candidates) and all(c.stop_reason is StopReason.TIMEOUT for c in self.candidates)


@dataclass(kw_only=True)
class Deliberation:
    """One deliberation under way.

    Args:
        task: What is to be solved.
        repository: Where every candidate starts.
        runs: Where agents and checks run.
        journal: The execution's own journal.
        known: What an earlier driver left; candidates and evidence in it stand.
    """

    task: Task
    repository: PinnedRepository
    runs: AgentRuns
    journal: Journal
    known: ExecutionState | None = None
    _candidates: list[Candidate] = field(default_factory=list[Candidate])
    _losses: list[str] = field(default_factory=list[str])
    _rejected: list[Candidate] = field(default_factory=list[Candidate])
    _checks: dict[str, asyncio.Task[CheckReport]] = field(default_factory=dict[str, "asyncio.Task[CheckReport]"])

    async def run(self) -> Verdict:
        """Let every agent solve the task, judge what comes in, rank it. A lost agent costs its own candidate only.

        An agent that waits for a person holds up nobody but the ranking.
        """
        reports: dict[str, CheckReport] = {}
        async with asyncio.TaskGroup() as group:
            for assignment in assignments(self.task, self.repository):
                group.create_task(self._candidate(assignment, group, reports))
        ranking = rank(self._candidates, reports)
        verdict = Verdict(
            candidates=tuple(self._candidates),
            ranking=ranking,
            losses=tuple(self._losses),
            usage=sum((candidate.usage for candidate in (*self._candidates, *self._rejected)), Usage()),
            rejections=tuple(candidate.error for candidate in self._rejected),
        )
        winner_id = verdict.winner.candidate_id if verdict.winner else ""
        await self.journal.append(CandidatesRanked(ranking=ranking, winner_id=winner_id))
        return verdict

    async def _candidate(
        self, assignment: Assignment, group: asyncio.TaskGroup, reports: dict[str, CheckReport]
    ) -> None:
        candidate = self.known.candidates.get(assignment.agent_id) if self.known else None
        if candidate is None:
            try:
                candidate = await self.runs.solve(assignment)
            except Fenced:
                raise
            except FleetError as error:
                self._losses.append(str(error))
                await self.journal.append(RunLost(lost_agent_id=assignment.agent_id, reason=str(error)))
                return
            if candidate.stop_reason is StopReason.REJECTED:
                self._rejected.append(candidate)
                return
            await self.journal.append(CandidateSubmitted(candidate=candidate))
        self._candidates.append(candidate)
        if self.known and (found := self.known.reports.get(candidate.candidate_id)):
            reports[candidate.candidate_id] = found
            return
        key = diff_key(candidate)
        if key not in self._checks:
            self._checks[key] = group.create_task(self._check(candidate))
        report = replace(await self._checks[key], candidate_id=candidate.candidate_id)
        reports[candidate.candidate_id] = report
        await self.journal.append(ChecksFinished(report=report))

    async def _check(self, candidate: Candidate) -> CheckReport:
        """The evidence about one diff; where none can be gathered, a report that says why and accepts nothing."""
        assignment = CheckAssignment(
            execution_id=self.task.execution_id,
            candidate_id=candidate.candidate_id,
            task=self.task,
            repository=self.repository,
            patch=candidate.artifacts.patch,
        )
        try:
            return await self.runs.fleet.check(assignment)
        except FleetError as error:
            missing = CheckResult(kind=CheckKind.DRY_RUN, name="evidence", passed=False, message=str(error))
            return CheckReport(candidate_id=candidate.candidate_id, results=(missing,))
