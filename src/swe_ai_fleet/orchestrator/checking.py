"""The evidence about a deliberation's candidates: gathered once for each distinct diff, recorded for each candidate."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.assignment import CheckAssignment, ExamineAssignment, Examinee
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, RankedCandidate
from swe_ai_fleet.domain.checklist import Requirement
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.domain.event import CandidatesExamined, ChecksFinished, ChecksStarted
from swe_ai_fleet.domain.examination import Examination, Matrix, ShownFault
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.orchestrator.evidence.check_results import no_evidence
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.orchestrator.groundwork import Groundwork
from swe_ai_fleet.orchestrator.ranking import behaviour_keys, rank


@dataclass(kw_only=True)
class Checking:
    """Has candidates checked, each against the untouched commit. Evidence of an earlier driver is reused."""

    work: ExecutionContext
    groundwork: Groundwork
    usage: Usage = field(default_factory=Usage)
    reports: dict[str, CheckReport] = field(default_factory=dict[str, CheckReport])
    _examinations: list[Examination] = field(default_factory=list[Examination])
    _behaviours: dict[str, str] = field(default_factory=dict[str, str])
    _by_diff: dict[str, CheckReport] = field(default_factory=dict[str, CheckReport])
    _gathering: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def report(self, candidate: Candidate) -> CheckReport:
        """The evidence about a candidate, recorded under its id. Raises Fenced, Unavailable of the journal."""
        recorded = self.work.known.reports.get(candidate.candidate_id)
        async with self._gathering[candidate.diff_digest]:
            gathered = recorded or self._by_diff.get(candidate.diff_digest) or await self._gather(candidate)
            if candidate.diff_digest not in self._by_diff:
                self._by_diff[candidate.diff_digest] = gathered
                self.usage += gathered.usage
        report = replace(gathered, candidate_id=candidate.candidate_id)
        self.reports[candidate.candidate_id] = report
        if recorded is None:
            await self.work.journal.append(ChecksFinished(report=report))
        return report

    async def behaviours(self, candidates: Sequence[Candidate]) -> Mapping[str, str]:
        """The `behaviour_keys` of candidates; each patch is read once. Raises Unavailable."""
        new = [candidate for candidate in candidates if candidate.candidate_id not in self._behaviours]
        self._behaviours |= await behaviour_keys(new, self.work.deps.blobs)
        return {candidate.candidate_id: self._behaviours[candidate.candidate_id] for candidate in candidates}

    async def beside_each_other(
        self, candidates: Sequence[Candidate], critiques: Iterable[Critique] = ()
    ) -> Mapping[str, CheckReport]:
        """The evidence about candidates after cross-examination by each other's new tests, which is recorded.

        Nothing runs where fewer than two sources are accepted, or none has a test that fails without the change;
        probes of the statement that fail on the untouched commit run on every accepted source. A fault that a critique
        shows with a command that passes on its author's own source counts as a test of that author. Raises Fenced,
        Unavailable of the journal.
        """
        by_id = {candidate.candidate_id: candidate for candidate in candidates}
        behaviours = await self.behaviours(candidates)
        places = [place for place in rank(candidates, self.reports, behaviours=behaviours) if place.accepted]
        examinees = [self._examinee(by_id[place.candidate_id]) for place in places]
        examinees = [examinee for examinee in examinees if examinee is not None]
        faults = list(_faults(places, by_id, critiques))
        checklist = await self.groundwork.checklist()
        requirements = checklist.telling if checklist is not None else ()
        several = len(examinees) > 1
        to_run = bool(requirements) or (several and any(examinee.tests for examinee in examinees))
        if not examinees or not (to_run or (several and faults)):
            return self.reports
        names = tuple(sorted(examinee.candidate_id for examinee in examinees))
        examination = await self._examined(examinees, requirements) if to_run else Examination(candidates=names)
        matrix = Matrix(examination.with_faults(faults))
        reports = dict(self.reports)
        for place in places:
            for name in (place.candidate_id, *place.duplicates):
                reports[name] = matrix.judged(place.candidate_id, self.reports[name])
        return reports

    def _examinee(self, candidate: Candidate) -> Examinee | None:
        patch = candidate.artifacts.patch
        results = self.reports[candidate.candidate_id].results
        tests = {result.name: result.own for result in results if result.own}
        return Examinee(candidate_id=candidate.candidate_id, patch=patch, tests=tests) if patch is not None else None

    async def _examined(self, examinees: Sequence[Examinee], requirements: tuple[Requirement, ...]) -> Examination:
        """The recorded examination of these candidates, or a new one; after a ranking nothing is run."""
        names = tuple(sorted(examinee.candidate_id for examinee in examinees))
        for earlier in (*self.work.known.examinations, *self._examinations):
            if earlier.candidates == names:
                return earlier
        if self.work.known.ranking:
            return Examination(candidates=names)
        try:
            examination = await self.work.runs.check(
                ExamineAssignment(
                    execution_id=self.work.task.execution_id,
                    task=self.work.task,
                    repository=self.work.repository,
                    examinees=tuple(examinees),
                    requirements=requirements,
                )
            )
        except Fenced:
            raise
        except FleetError as error:
            examination = Examination(notes=(str(error),))
        examination = replace(examination, candidates=names)
        self._examinations.append(examination)
        await self.work.journal.append(CandidatesExamined(examination=examination))
        return examination

    async def _gather(self, candidate: Candidate) -> CheckReport:
        """The evidence about one diff; where gathering it fails, a report with the reason."""
        assignment = CheckAssignment(
            execution_id=self.work.task.execution_id,
            candidate_id=candidate.candidate_id,
            task=self.work.task,
            repository=self.work.repository,
            patch=candidate.artifacts.patch,
        )
        command = await self.groundwork.commands()
        await self.work.journal.append(ChecksStarted(candidate_id=candidate.candidate_id, command=command))
        try:
            return await self.work.runs.check(assignment)
        except Fenced:
            raise
        except FleetError as error:
            return no_evidence(candidate.candidate_id, error)


def _faults(
    places: Iterable[RankedCandidate], candidates: Mapping[str, Candidate], critiques: Iterable[Critique]
) -> Iterator[ShownFault]:
    """The faults that ranked authors showed in other ranked candidates by their reviews."""
    by_id = {name: place.candidate_id for place in places for name in (place.candidate_id, *place.duplicates)}
    by_author = {candidates[name].author: place for name, place in by_id.items()}
    for critique in critiques:
        author, subject = by_author.get(critique.reviewer_id), by_id.get(critique.candidate_id)
        if author is None or subject is None or author == subject:
            continue
        for finding in critique.findings:
            if finding.must_fix and finding.reproduced and finding.proof is not None and finding.proof.passes_on_own:
                proof, both = finding.proof, {author, subject}
                yield ShownFault(
                    author_id=author,
                    candidate_id=subject,
                    command=proof.command,
                    seen=proof.seen,
                    passes_on=tuple(by_id[name] for name in proof.passes_on if by_id.get(name, author) not in both),
                    fails_on=tuple(by_id[name] for name in proof.fails_on if by_id.get(name, author) not in both),
                )
