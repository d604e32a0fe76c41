"""Rounds of peer review: agents criticise the others' candidates, authors revise or answer, critics review again.

Every step is first looked up in the log, and the plan of each round depends only on what the log has before it; so an
orchestrator that takes over repeats nothing, and comes to the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.assignment import CodingAssignment, ReviewAssignment, Subject
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Revision
from swe_ai_fleet.domain.errors import AgentLost, Fenced, FleetError
from swe_ai_fleet.domain.event import CandidateReviewed, CandidateSubmitted, RevisionJudged, RunLost, VotesCast
from swe_ai_fleet.domain.review import Critique, Review, Vote
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.checking import Checking
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.orchestrator.judging import as_cast, ballot_seed, pairs, peers_for
from swe_ai_fleet.orchestrator.runs import TaskSpending, review_run, revision_run
from swe_ai_fleet.orchestrator.score import VERIFIED_TIER, tier, worse

_AGREEING = 2
_OVER = "ranked without it"
_Requests = Mapping[str, Mapping[str, Subject]]
"""The candidates to review, by reviewer and candidate id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """An author in a deliberation: its first assignment, and its current candidate."""

    assignment: CodingAssignment
    candidate: Candidate

    @property
    def author(self) -> str:
        return self.assignment.agent_id

    @property
    def reviewable(self) -> bool:
        """Whether there is a diff to review."""
        patch = self.candidate.artifacts.patch
        return patch is not None and patch.size > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rework:
    """An author's candidates before and after a revision; `kept`: the revision replaces the earlier one."""

    before: Author
    after: Author
    kept: bool

    @property
    def unchanged(self) -> bool:
        """Whether the author only answered, without a change."""
        return self.before.candidate.diff_digest == self.after.candidate.diff_digest


@dataclass(kw_only=True)
class PeerReview:
    """The peer review of one deliberation, with at most the `rounds` of its task.

    Critiques, revisions and judgements of an earlier driver are reused.

    Attributes:
        answers: The authors' replies to reviews, by their current candidates: untrusted text.
        votes: By reviewer, the vote for the candidate that it put first when it last saw several side by side. In the
            end votes for an author's earlier candidate become votes for the current one.
    """

    work: ExecutionContext
    checking: Checking
    spending: TaskSpending
    answers: dict[str, str] = field(default_factory=dict[str, str])
    votes: dict[str, Vote] = field(default_factory=dict[str, Vote])
    _by_diff: dict[str, dict[str, Critique]] = field(default_factory=dict[str, dict[str, Critique]])
    _reports: Mapping[str, CheckReport] = field(default_factory=dict[str, CheckReport])
    _revised: set[str] = field(default_factory=set[str])
    _authors: dict[str, str] = field(default_factory=dict[str, str])

    def critiques_of(self, entries: Sequence[Author]) -> tuple[Critique, ...]:
        """The last critique of each reviewer about these authors' candidates, under the candidate's id."""
        by_diff = {entry.candidate.diff_digest: entry.candidate.candidate_id for entry in reversed(entries)}
        return tuple(
            replace(critique, candidate_id=candidate_id)
            for diff, candidate_id in by_diff.items()
            for critique in self._by_diff.get(diff, {}).values()
        )

    def _report(self, entry: Author) -> CheckReport:
        """The evidence about a candidate, after cross-examination where there was one."""
        name = entry.candidate.candidate_id
        return self._reports.get(name) or self.checking.reports[name]

    async def run(self, entries: Sequence[Author]) -> tuple[Author, ...]:
        """Run the rounds until no author has to revise; returns the authors with their current candidates.

        A lost review or revision costs only itself. Raises Fenced, Unavailable of the journal.
        """
        entries, state = tuple(entries), self.work.known
        if len(entries) < 2:
            return entries
        self._authors |= {entry.candidate.candidate_id: entry.author for entry in entries}
        for number in range(1, self.work.task.rounds + 1):
            self._reports = await self.checking.beside_each_other([entry.candidate for entry in entries])
            await self._review(number, entries)
            authors = [entry for entry in entries if self._must_revise(entry)]
            if state.ranking:
                # After a ranking no new revision is started.
                authors = [entry for entry in authors if revision_run(entry.author, number) in state.candidates]
            if not authors or self._agreed(entries):
                break
            revisions = await self._revise(number, authors)
            kept_revisions = {revised.before.author: revised.after for revised in revisions if revised.kept}
            current = tuple(kept_revisions.get(entry.author, entry) for entry in entries)
            self._authors |= {entry.candidate.candidate_id: entry.author for entry in current}
            await self._review_again(number, revisions, current)
            entries = current
        await self._move_votes(entries)
        return entries

    async def _move_votes(self, entries: Sequence[Author]) -> None:
        """Turn votes for candidates that were revised since into votes for the revisions, in the log as well."""
        current = {entry.author: entry.candidate.candidate_id for entry in entries}
        renamed = {name: current.get(author, name) for name, author in self._authors.items()}
        for reviewer, vote in self.votes.items():
            order = tuple(renamed.get(name, name) for name in vote.order)
            if order != vote.order:
                self.votes[reviewer] = replace(vote, order=order, choice=renamed.get(vote.choice, vote.choice))
                await self.work.journal.append(VotesCast(votes=(self.votes[reviewer],)))

    async def _review(self, number: int, entries: Sequence[Author]) -> None:
        """Have each diff reviewed that has the best verdict and no critique yet.

        A candidate with a lower verdict cannot win, whatever its reviews. A single verified one gets one reviewer, who
        looks for what the evidence misses. Where the checks refuse all candidates, all are reviewed, so that authors
        know why.
        """
        best = max((tier(self._report(entry)) for entry in entries if entry.reviewable), default=0)
        diffs = {entry.author: entry.candidate.diff_digest for entry in entries}
        first = {diffs[entry.author]: entry for entry in reversed(entries)}
        subjects = [
            entry
            for entry in entries
            if entry.reviewable
            and tier(self._report(entry)) == best
            and first[diffs[entry.author]] is entry
            and not self._critiques_of(entry)
        ]
        subjects_by_author = {e.author: Subject(candidate=e.candidate, report=self._report(e)) for e in subjects}
        requests: dict[str, dict[str, Subject]] = {}
        for author, reviewer in pairs(
            tuple(diffs), diffs, [*subjects_by_author], turn=number - 1, peers=peers_for(best, len(subjects_by_author))
        ):
            subject = subjects_by_author[author]
            requests.setdefault(reviewer, {})[subject.candidate.candidate_id] = subject
        await self._ask(number, entries, requests)

    async def _review_again(self, number: int, revisions: Sequence[_Rework], current: Sequence[Author]) -> None:
        """Have reviewers who objected review the authors' revisions or answers; other critiques remain.

        Where the checks refused the earlier candidate, all of its reviewers review again. If a second review fails, the
        reviewer's first one remains.
        """
        requests: dict[str, dict[str, Subject]] = {}
        own = {entry.author: entry.candidate.diff_digest for entry in current}
        for revised in revisions:
            if not revised.kept and not revised.unchanged:
                continue
            before, after = revised.before.candidate.diff_digest, revised.after.candidate.diff_digest
            refused = not self.checking.reports[revised.before.candidate.candidate_id].accepted
            earlier = self._by_diff.get(after, {}) if revised.kept else {}
            for critique in self._critiques_of(revised.before):
                reviewer = critique.reviewer_id
                if (critique.objects or refused) and reviewer not in earlier and own[reviewer] != after:
                    subject = Subject(
                        candidate=revised.after.candidate, report=self._report(revised.after), earlier=critique
                    )
                    requests.setdefault(reviewer, {})[revised.after.candidate.candidate_id] = subject
            self._by_diff[after] = {**self._by_diff.get(before, {}), **self._by_diff.get(after, {})}
        await self._ask(number, current, requests, again=True)

    async def _ask(self, number: int, entries: Sequence[Author], requests: _Requests, *, again: bool = False) -> None:
        """Have reviewers review candidates side by side, together with settled ones for comparison.

        A failed review leaves an earlier critique in place.
        """
        # Half of what is left is reserved for revisions.
        task = self.spending.granted(2 * len(requests)) if requests else None
        if task is None:
            return
        checklist = await self.checking.groundwork.checklist()
        assignments = [
            ReviewAssignment(
                execution_id=task.execution_id,
                agent_id=review_run(entry.author, number, again=again),
                reviewer_id=entry.author,
                round=number,
                task=task,
                repository=entry.assignment.repository,
                subjects=(*requests[entry.author].values(), *self._settled(entry, entries, requests[entry.author])),
                seed=ballot_seed(task.execution_id, entry.author),
                perspective=entry.assignment.perspective,
                own=entry.candidate.artifacts.patch,
                unshown=checklist.unshown if checklist is not None else (),
            )
            for entry in entries
            if entry.author in requests
        ]
        async with asyncio.TaskGroup() as group:
            reviews = [group.create_task(self._reviewed(assignment)) for assignment in assignments]
        for assignment, done in zip(assignments, reviews, strict=True):
            review, reviewer = done.result(), assignment.reviewer_id
            diffs = {subject.candidate.candidate_id: subject.candidate.diff_digest for subject in assignment.subjects}
            for critique in review.critiques:
                self.spending.usage += critique.usage
                about = self._by_diff.setdefault(diffs[critique.candidate_id], {})
                if not critique.error or reviewer not in about:
                    about[reviewer] = critique
            if review.vote is not None:
                self.votes[reviewer] = review.vote

    def _settled(
        self, reviewer: Author, entries: Sequence[Author], requests: Mapping[str, Subject]
    ) -> Iterator[Subject]:
        """Other candidates, one of each diff, that a reviewer has a critique of already."""
        left_out = {reviewer.candidate.diff_digest} | {other.candidate.diff_digest for other in requests.values()}
        for entry in entries:
            diff = entry.candidate.diff_digest
            earlier = self._by_diff.get(diff, {}).get(reviewer.author)
            if earlier is not None and not earlier.error and diff not in left_out:
                left_out.add(diff)
                yield Subject(candidate=entry.candidate, report=self._report(entry), earlier=earlier, settled=True)

    async def _reviewed(self, assignment: ReviewAssignment) -> Review:
        """One peer's review, recorded; a failed one has the reason as its error."""
        if (earlier := self._earlier_review(assignment)) is not None:
            return earlier
        if self.work.known.ranking:
            return Review(critiques=_critiques(Review(), assignment, _OVER))
        error = "the reviewer did not review this candidate"
        try:
            review = await self.work.runs.run(assignment)
        except Fenced:
            raise
        except FleetError as fault:
            if isinstance(fault, AgentLost):
                await self.work.journal.append(RunLost(lost_agent_id=assignment.agent_id, reason=str(fault)))
            review, error = Review(), str(fault)
        # An architect decides alone.
        vote = None if self.work.task.architect_top_k else review.vote
        if vote is not None:
            ballot = [subject.candidate.candidate_id for subject in assignment.subjects]
            vote = as_cast(replace(vote, sample=1), assignment.reviewer_id, ballot)
            # Written before the critiques, so that the vote is in the log wherever they are.
            if vote not in self.work.known.votes:
                await self.work.journal.append(VotesCast(votes=(vote,)))
        review = Review(critiques=_critiques(review, assignment, error), vote=vote)
        known_before = {critique.key for critique in self.work.known.critiques}
        for critique in review.critiques:
            if critique.key not in known_before:
                await self.work.journal.append(CandidateReviewed(critique=critique))
        return review

    def _earlier_review(self, assignment: ReviewAssignment) -> Review | None:
        """The review under an earlier driver, if all of it is in the log."""
        critiques = {critique.key: critique for critique in self.work.known.critiques}
        names = [subject.candidate.candidate_id for subject in assignment.subjects if not subject.settled]
        keys = [(assignment.round, assignment.reviewer_id, name) for name in names]
        if not critiques.keys() >= set(keys):
            return None
        votes = (vote for vote in self.work.known.votes if (vote.judge_id, vote.sample) == (assignment.reviewer_id, 1))
        return Review(critiques=tuple(critiques[key] for key in keys), vote=next(votes, None))

    def _critiques_of(self, entry: Author) -> list[Critique]:
        """The valid critiques of an author's diff."""
        return [
            critique for critique in self._by_diff.get(entry.candidate.diff_digest, {}).values() if not critique.error
        ]

    def _must_revise(self, entry: Author) -> bool:
        """Whether a candidate has faults that its author has not tried to fix."""
        candidate = entry.candidate
        if candidate.candidate_id in self._revised or not entry.reviewable:
            return False
        accepted = self.checking.reports[candidate.candidate_id].accepted
        return not accepted or any(critique.objects for critique in self._critiques_of(entry))

    def _agreed(self, entries: Sequence[Author]) -> bool:
        """Whether evidence and peers prefer one candidate without objections, so that revisions could not win.

        It alone is verified, or at least two peers saw it beside another one and all of them put it first.
        """
        tiers = {entry.author: tier(self._report(entry)) for entry in entries}
        best = max(tiers.values())
        by_diff: dict[str, list[Author]] = {}
        for entry in entries:
            if entry.reviewable and tiers[entry.author] == best:
                by_diff.setdefault(entry.candidate.diff_digest, []).append(entry)
        alone_verified = best == VERIFIED_TIER and len(by_diff) == 1
        return best > 0 and any(
            (critiques := self._critiques_of(alike[0]))
            and not any(critique.objects for critique in critiques)
            and (alone_verified or self._first_of_all(alike))
            for alike in by_diff.values()
        )

    def _first_of_all(self, alike: Sequence[Author]) -> bool:
        """Whether two peers or more voted where one of these equal candidates could be chosen, and all chose it."""
        names, authors = {entry.candidate.candidate_id for entry in alike}, {entry.author for entry in alike}
        chosen = [
            vote.choice in names
            for vote in self.votes.values()
            if not vote.error and vote.judge_id not in authors and not names.isdisjoint(vote.order)
        ]
        return len(chosen) >= _AGREEING and all(chosen)

    async def _revise(self, number: int, authors: Sequence[Author]) -> list[_Rework]:
        """Have these authors revise; returns what they submitted."""
        task = self.spending.granted(len(authors))
        if task is None:
            return []
        self._revised |= {entry.candidate.candidate_id for entry in authors}
        async with asyncio.TaskGroup() as group:
            tried = [group.create_task(self._revision(number, entry, task)) for entry in authors]
        revisions: list[_Rework] = []
        for entry, done in zip(authors, tried, strict=True):
            candidate, is_kept = done.result()
            if candidate is None:
                continue
            self.spending.usage += candidate.usage
            if candidate.stop_reason is StopReason.REJECTED:
                continue
            revised = _Rework(before=entry, after=replace(entry, candidate=candidate), kept=is_kept)
            revisions.append(revised)
            if (is_kept or revised.unchanged) and self._critiques_of(entry):
                self.answers[(revised.after if is_kept else entry).candidate.candidate_id] = candidate.summary
        return revisions

    async def _revision(self, number: int, entry: Author, task: Task) -> tuple[Candidate | None, bool]:
        """One author's revision, None where it was lost, and whether it replaces the author's candidate."""
        name, report = revision_run(entry.author, number), self.checking.reports[entry.candidate.candidate_id]
        candidate = self.work.known.candidates.get(name)
        if candidate is None:
            if (agent := self.work.known.agents.get(name)) and agent.status == "lost":
                return None, False
            revision = Revision(
                round=number, candidate=entry.candidate, report=report, critiques=tuple(self._critiques_of(entry))
            )
            assignment = replace(entry.assignment, agent_id=name, author_id=entry.author, task=task, revision=revision)
            candidate = await self.work.runs.or_loss(name, self.work.runs.solve(assignment))
            if isinstance(candidate, FleetError):
                return None, False
            if candidate.stop_reason is StopReason.REJECTED:
                # A person rejected it; the author's earlier candidate remains.
                return candidate, False
            await self.work.journal.append(CandidateSubmitted(candidate=candidate))
        after = await self.checking.report(candidate)
        return candidate, await self._judged(entry.candidate, report, candidate, after)

    async def _judged(self, old: Candidate, before: CheckReport, new: Candidate, after: CheckReport) -> bool:
        """Whether a revision replaces the candidate that it revises; recorded with the reason."""
        if new.candidate_id in self.work.known.judged:
            return new.candidate_id not in self.work.known.dropped
        reason = "unchanged" if old.diff_digest == new.diff_digest else worse(before, after)
        judged = RevisionJudged(
            candidate_id=new.candidate_id,
            revises=old.candidate_id,
            kept=not reason,
            reason=reason or "its evidence is no worse",
        )
        await self.work.journal.append(judged)
        return judged.kept


def _critiques(review: Review, assignment: ReviewAssignment, error: str) -> tuple[Critique, ...]:
    """One critique of each candidate that was to be reviewed; with `error` where the review has none.

    The assignment decides about reviewer, candidates and round, whatever the reply says.
    """
    names = [subject.candidate.candidate_id for subject in assignment.subjects if not subject.settled]
    single = len(names) == len(review.critiques) == 1
    by_candidate = {names[0] if single else critique.candidate_id: critique for critique in review.critiques}
    failed = Critique(reviewer_id="", candidate_id="", round=0, error=error, at=now())
    return tuple(
        replace(
            by_candidate.get(name, failed),
            reviewer_id=assignment.reviewer_id,
            candidate_id=name,
            round=assignment.round,
        )
        for name in names
    )
