"""Probes of the statement at work: the product's own examination of the untouched commit and of a pool's candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labs.selection.catalogue import Probe
from labs.selection.making import Pool
from labs.selection.probes import MadeProbe
from swe_ai_fleet.agents.preparation import read_checklist
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.assignment import ExamineAssignment, Examinee
from swe_ai_fleet.domain.candidate import Candidate, CheckReport
from swe_ai_fleet.domain.checklist import Checklist, Requirement
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.evidence import EvidenceGatherer
from swe_ai_fleet.orchestrator.ranking import rank
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import git


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnd:
    """What came of one probe.

    Attributes:
        telling: Whether it fails on the untouched commit, so that it runs on the candidates.
        passed: The candidates that pass it; `failed` and `unsaid` are the others of those that may win.
    """

    kind: Probe
    telling: bool
    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What the probes of a pool say of its candidates, None where none can say anything; and what came of each."""

    examination: Examination | None = None
    ends: tuple[ProbeEnd, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Probing:
    """Has probes run as `orchestrator/groundwork.py` and `checking.py` do, on this machine, in clean clones.

    Attributes:
        home: Where clones and environments are.
    """

    home: Path
    log: MemoryLog = field(default_factory=MemoryLog)

    async def probed(self, pool: Pool, repository: Path, request: Mapping[str, Any]) -> Probed:
        """The probes on the untouched commit, then those that tell something on all candidates that may win.

        Args:
            request: `candidates`, `reports` and `behaviours` as `opinion.selected` takes them.
        """
        if not pool.probes:
            return Probed()
        commit = git(repository, "rev-parse", f"{pool.ref}^{{commit}}")
        task = Task(
            task_id=pool.spec.name,
            kind=TaskKind.DELIBERATE,
            description="\n".join(probe.quote for probe in pool.probes),
            repo=RepoRef(location=str(repository), commit=commit),
        )
        made = pool.probes
        checklist = await self._tried(made, task)
        if any(probe.test is not None for probe in made):
            # How the untouched commit fails is a part of what a loose probe asks.
            seen = {one.quote: one.seen for one in checklist.telling}
            made = tuple(replace(probe, command=probe.loosened(seen.get(probe.quote, ""))) for probe in made)
            checklist = await self._tried(made, task)
        examinees = await self._examinees(pool, task, request)
        if not (checklist.telling and examinees):
            return Probed(ends=_ends(made, checklist, Examination()))
        examination = await self._examined(task, checklist.telling, examinees)
        return Probed(examination=examination, ends=_ends(made, checklist, examination))

    async def _tried(self, probes: Sequence[MadeProbe], task: Task) -> Checklist:
        """What an agent answers that makes these probes, once they ran on the untouched commit."""
        answer = {"requirements": [{"quote": probe.quote, "probe": probe.command} for probe in probes]}
        checklist = Checklist(requirements=read_checklist(json.dumps(answer), task))
        return checklist.with_outcomes(await self._examined(task, checklist.probed))

    async def _examinees(self, pool: Pool, task: Task, request: Mapping[str, Any]) -> list[Examinee]:
        """The candidates that may win. Their tests ran on each other's sources where the fleet judged the pool."""
        candidates = [from_plain(Candidate, plain) for plain in request["candidates"]]
        reports = {plain["candidate_id"]: from_plain(CheckReport, plain) for plain in request["reports"]}
        places = [one for one in rank(candidates, reports, behaviours=request["behaviours"]) if one.accepted]
        patches = {made.candidate_id: made.patch for made in pool.candidates}
        return [
            Examinee(
                candidate_id=place.candidate_id,
                patch=await self.log.put(task.tenant, task.execution_id, patches[place.candidate_id], "text/x-diff"),
            )
            for place in places
        ]

    async def _examined(
        self, task: Task, requirements: Sequence[Requirement], examinees: Sequence[Examinee] = ()
    ) -> Examination:
        provider = workspace_provider(Settings(home=self.home))
        return await EvidenceGatherer(workspaces=provider, blobs=self.log).examine(
            ExamineAssignment(
                execution_id=task.execution_id,
                task=task,
                repository=await provider.pin(task.tenant, task.repo),
                examinees=tuple(examinees),
                requirements=tuple(requirements),
            )
        )


def _ends(probes: Sequence[MadeProbe], checklist: Checklist, examination: Examination) -> tuple[ProbeEnd, ...]:
    kinds = {probe.quote: probe.kind for probe in probes}
    crossings = [one for tests in examination.sets for one in tests.crossings]
    return tuple(
        ProbeEnd(
            kind=kinds[one.quote],
            telling=one.met_before is False,
            passed=tuple(sorted(each.candidate_id for each in crossings if one.name in each.passed)),
            failed=tuple(
                sorted(each.candidate_id for each in crossings if any(one.name == bad.test for bad in each.failed))
            ),
            unsaid=tuple(sorted(each.candidate_id for each in crossings if one.name in each.unsaid)),
        )
        for one in checklist.probed
    )
