"""Patches from anywhere, judged as candidates are: environment, baseline, evidence, one ranking; no agent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from swe_ai_fleet.domain.audit import GENESIS
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import CandidatesRanked, CandidateSubmitted
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.task import SubmittedPatch
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.checking import Checking
from swe_ai_fleet.orchestrator.deliberate import Conclusion
from swe_ai_fleet.orchestrator.evidence.patch import PatchUnreadable, parse_patch
from swe_ai_fleet.orchestrator.groundwork import Groundwork
from swe_ai_fleet.orchestrator.selection import rank
from swe_ai_fleet.orchestrator.underway import Underway


@dataclass(frozen=True, kw_only=True)
class PatchJudgement:
    """The patches of one task under way."""

    work: Underway

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
        """Files, lines added, lines removed; nothing where it cannot be read, which its evidence will say."""
        try:
            parsed = await asyncio.to_thread(parse_patch, await self.work.blobs.get(patch.patch))
        except (PatchUnreadable, FleetError):
            return (), 0, 0
        lines = {sign: sum(1 for file in parsed.files for _ in file.lines(sign)) for sign in "+-"}
        return tuple(file.path for file in parsed.files), lines["+"], lines["-"]
