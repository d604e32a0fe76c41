"""The scores of a verifier model: who is scored, and what the scores have been worth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from swe_ai_fleet.domain.errand import ScoreAssignment
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.event import CandidateScored, RunLost
from swe_ai_fleet.domain.outcome import Outcome
from swe_ai_fleet.domain.review import VerifierScore
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.learning.calibration import calibrated, rated
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.judging import Contest
from swe_ai_fleet.orchestrator.run_names import score_run
from swe_ai_fleet.orchestrator.spending import Spending
from swe_ai_fleet.orchestrator.standing import Standing, standings

_ERROR_CHARS = 4_000
_log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """The verifier model of a fleet.

    Attributes:
        outcomes: What is known of a tenant's ended executions. Raises Unavailable.
    """

    outcomes: Callable[[str], Sequence[Outcome]]

    async def scores(self, runs: AgentRuns, spending: Spending, contest: Contest) -> Mapping[str, float]:
        """What it finds the accepted candidates worth, calibrated, by candidate; one stands for those of its place.

        Nothing is asked where there is one alone.
        Each score is written as `CandidateScored` when it is in. Who was scored under an earlier driver, or whose
        scoring was lost, is not scored again. A scoring that fails costs this score only; none begins where too little
        is left of what the task may spend.

        Raises:
            Fenced: Another driver has taken over.
        """
        known = dict(runs.known.scores)
        for one in known.values():
            spending.add(one.usage)
        places = standings(
            contest.candidates,
            contest.reports,
            contest.critiques,
            contest.votes,
            contest.behaviours,
            needs_proof=spending.task.constraints.require_verified,
        )
        accepted = [place for place in places if place.accepted]
        # One alone stays first whatever is said of it.
        wanted = [place for place in accepted if not self._asked(place, runs)] if len(accepted) > 1 else []
        task = spending.granted(len(wanted)) if wanted else None
        if task is not None:
            async with asyncio.TaskGroup() as group:
                scorings = [group.create_task(self._score(runs, task, place)) for place in wanted]
            for score in (scoring.result() for scoring in scorings):
                if score is not None:
                    known[score.candidate_id] = score
                    spending.add(score.usage)
        return {name: one.score for name, one in known.items() if one.score is not None}

    def _asked(self, place: Standing, runs: AgentRuns) -> bool:
        """Whether its score is known, or was lost."""
        agents = [runs.known.agents.get(score_run(name)) for name in place.ids]
        lost = any(agent is not None and agent.status == "lost" for agent in agents)
        return lost or not place.ids.isdisjoint(runs.known.scores)

    async def _score(self, runs: AgentRuns, task: Task, place: Standing) -> VerifierScore | None:
        """A place's score, recorded; None where the scoring was lost."""
        assignment = ScoreAssignment(
            execution_id=task.execution_id,
            agent_id=score_run(place.candidate.candidate_id),
            task=task,
            repository=runs.known.repository,
            candidate=place.candidate,
            report=place.report,
        )
        try:
            score = await runs.carry_out(assignment)
        except Fenced:
            raise
        except FleetError as error:
            await runs.journal.append(RunLost(lost_agent_id=assignment.agent_id, reason=str(error)))
            return None
        score = self._calibrated(replace(score, candidate_id=assignment.candidate.candidate_id), assignment.task.tenant)
        await runs.journal.append(CandidateScored(score=score))
        return score

    def _calibrated(self, score: VerifierScore, tenant: str) -> VerifierScore:
        """What a host handed in, as it may count."""
        if score.raw is None or not 0.0 <= score.raw <= 1.0:
            error = score.error[:_ERROR_CHARS] or "it has no score between 0 and 1"
            return replace(score, raw=None, score=None, outcomes=0, error=error)
        try:
            known = rated(self.outcomes(tenant), score.model)
        except FleetError as error:
            _log.warning("a verifier's score is not calibrated", reason=str(error))
            known = []
        return replace(score, score=round(calibrated(score.raw, known), 6), outcomes=len(known), error="")
