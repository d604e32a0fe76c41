"""Cross-examination: the new tests of each candidate on the source of every other one, and what that comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

from swe_ai_fleet.domain.candidate import CheckKind, CheckReport, ForeignTests, Verdict
from swe_ai_fleet.domain.test_run import Crossing, ForeignFailure
from swe_ai_fleet.domain.text import one_line

STATEMENT = "the statement"
"""Stands for the author of probes: it has no source, and saw nobody's. No candidate's id has a space."""
PROBE_MARK = ": `"
"""Stands between the words that a probe is for and its command, in its name."""
LITTLE = 0.25
"""What a test weighs that nobody but its author stands behind: it may be wrong."""
PROBES_TO_VERIFY = 2
"""So many probes have to pass on a candidate that nothing else shows: nobody has seen that any single one is right."""
_NOTHING_SAID = 0.5
_NAMED = 3
_SAID = 5
_COMMAND_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSet:
    """The new tests of one candidate, or of several that bring the same.

    Each of `tests` fails on the untouched source and passes on the source of each of `candidates`, its authors; the
    probes of the task's statement are tests of STATEMENT, which has no source. Those
    among them that are `proofs` are commands by which an author showed a fault of somebody else's source in a review:
    who wrote one has seen that source, and it may pass on the untouched one. So a proof speaks against what fails it,
    the louder the more others pass it, and for nobody.
    """

    __test__ = False

    candidates: tuple[str, ...]
    tests: tuple[str, ...]
    crossings: tuple[Crossing, ...] = ()
    proofs: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.candidates[0]

    @property
    def authors(self) -> tuple[str, ...]:
        """The candidates that stand behind the tests by their own source; none behind probes of the statement."""
        return () if self.candidates == (STATEMENT,) else self.candidates

    def on(self, candidate_id: str) -> Crossing | None:
        """How its tests ended on a source; None where they were not run there."""
        if candidate_id in self.candidates:
            return Crossing(candidate_id=candidate_id, passed=self.tests)
        return next((crossing for crossing in self.crossings if crossing.candidate_id == candidate_id), None)

    def shown_by(self, crossing: Crossing) -> tuple[str, ...]:
        """The tests that pass in a crossing, without the proofs."""
        return tuple(test for test in crossing.passed if test not in self.proofs)

    def with_fault(self, fault: ShownFault) -> TestSet:
        """The same with a fault that its author showed; the command is the name of the test."""
        test = one_line(f"`{fault.command}`", _COMMAND_CHARS)
        crossings = {crossing.candidate_id: crossing for crossing in self.crossings}
        for name in dict.fromkeys((fault.candidate_id, *fault.fails_on, *fault.passes_on)):
            before = crossings.get(name) or Crossing(candidate_id=name)
            if name in fault.passes_on:
                crossings[name] = replace(before, passed=tuple(dict.fromkeys((*before.passed, test))))
            elif name not in self.candidates and all(failure.test != test for failure in before.failed):
                seen = fault.seen if name == fault.candidate_id else ""
                crossings[name] = replace(before, failed=(*before.failed, ForeignFailure(test=test, message=seen)))
        return replace(
            self,
            tests=tuple(dict.fromkeys((*self.tests, test))),
            crossings=tuple(sorted(crossings.values(), key=lambda crossing: crossing.candidate_id)),
            proofs=self.proofs | {test},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two candidates each of which fails a test of the other that nobody else's change passes: one of them errs."""

    candidate_id: str
    test: str
    other_id: str
    other_test: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFault:
    """A fault of one candidate's source that the author of another one showed by a command: it passes on its own.

    Of the other candidates the command passes on those that `passes_on` names, and fails on those of `fails_on`.
    """

    author_id: str
    candidate_id: str
    command: str
    seen: str = ""
    passes_on: tuple[str, ...] = ()
    fails_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A matrix of sources and tests. `candidates` stand for one source each, those of equal behaviour for one."""

    candidates: tuple[str, ...] = ()
    sets: tuple[TestSet, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()
    duration_ms: int = 0

    def with_conflicts(self) -> Examination:
        """The same with its conflicts."""
        return replace(self, conflicts=tuple(Matrix(self).conflicts()))

    def with_faults(self, faults: Iterable[ShownFault]) -> Examination:
        """The same with shown faults as tests of those who showed them, run where they were shown."""
        sets = list(self.sets)
        for fault in sorted(
            faults, key=lambda fault_found: (fault_found.author_id, fault_found.candidate_id, fault_found.command)
        ):
            at = next((at for at, test_set in enumerate(sets) if fault.author_id in test_set.candidates), len(sets))
            own = sets[at] if at < len(sets) else TestSet(candidates=(fault.author_id,), tests=())
            sets[at:] = [own.with_fault(fault), *sets[at + 1 :]]
        return replace(self, sets=tuple(sets))


@dataclass(frozen=True)
class Matrix:
    """What an examination says of the candidates. Everything is counted by authors: many tests are no louder than few.

    That programs and tests which agree are right more often is CodeT's dual execution agreement (Chen et al., 2022,
    arXiv:2207.10397); CodeMonkeys lets the tests of all candidates vote (Ehrlich et al., 2025, arXiv:2501.14723).
    """

    examination: Examination

    def authors_passed(self, candidate_id: str) -> int:
        """Of how many authors a source passes the tests, as far as they can say something; its own are among them.

        The statement is none of these: no source shows that its probes are right.
        """
        return self._passed.get(candidate_id, 0)

    def foreign_authors(self, candidate_id: str) -> tuple[int, int]:
        """The tests of how many other authors pass, and of how many anything can be said."""
        crossings = [
            crossing for tests, crossing in self._foreign(candidate_id) if tests.shown_by(crossing) or crossing.failed
        ]
        return sum(not crossing.failed for crossing in crossings), len(crossings)

    def failures(self, candidate_id: str) -> list[tuple[TestSet, tuple[str, ...]]]:
        """The tests of others that fail on a source, by author."""
        return [
            (tests, tuple(failure.test for failure in crossing.failed))
            for tests, crossing in self._foreign(candidate_id)
            if crossing.failed
        ]

    def passers(self, tests: TestSet, test: str) -> tuple[str, ...]:
        """The sources of others that pass a test."""
        return tuple(crossing.candidate_id for crossing in tests.crossings if test in crossing.passed)

    def value(self, candidate_id: str) -> float:
        """How the tests of all authors speak of a source: 0 all against, 1 all for, a half where none says anything.

        `(1/2 + sum(weights of those for)) / (1 + sum(all weights))`, each author counted once by the weightiest test
        that fails, else by the weightiest that passes. Its own tests count where others pass them too: all who pass a
        test stand equal, and nobody's word about their own work counts.
        """
        speaking: list[tuple[float, bool]] = []
        for tests in self.examination.sets:
            crossing = tests.on(candidate_id)
            if crossing is None:
                continue
            against = max((self.weight(tests, failure.test) for failure in crossing.failed), default=0.0)
            speaking += [(against, False)] if against else []
            own = candidate_id in tests.candidates
            passed = [test for test in tests.shown_by(crossing) if not own or self.passers(tests, test)]
            if passed and against <= LITTLE:
                speaking.append((max(self.weight(tests, test) for test in passed), True))
        # Sorted: the order of floating-point sums must not depend on the order of candidates.
        good = fsum(weight for weight, speaks_for in speaking if speaks_for)
        return (_NOTHING_SAID + good) / (1 + fsum(weight for weight, _ in speaking))

    def weight(self, tests: TestSet, test: str) -> float:
        """What a test weighs: `(n + 1/4) / (n + 1)`, below 1, where n other authors stand behind it.

        These are the authors of other sources that pass it. Where there is none, they are those whose tests its
        author's source passes, if it fails no other author's tests: nothing contradicts it. A test
        that nobody stands behind weighs half of that, where others pass none of its author's. Of a probe the first
        source that passes is what an author's own is of a test.
        """
        behind = len(self.passers(tests, test))
        if not tests.authors:
            behind = max(0, behind - 1)
        elif not behind:
            unopposed = [name for name in tests.authors if not self.failures(name)]
            behind = max((self.authors_passed(name) - 1 for name in unopposed), default=0)
        if not behind and not any(self.passers(tests, other) for other in tests.tests):
            return LITTLE / 2
        return (behind + LITTLE) / (behind + 1)

    def disputes(self, candidate_id: str) -> list[tuple[TestSet, tuple[str, ...]]]:
        """The failing tests of authors whose own source passes the tests of at least as many authors.

        For a probe of the statement the sources that pass it stand in: one that nobody passes may be wrong itself.
        """
        own = self.authors_passed(candidate_id)
        return [
            (tests, failed)
            for tests, failed in self.failures(candidate_id)
            if any(self.authors_passed(name) >= own for name in tests.authors or self._passers(tests, failed))
        ]

    def supporters(self, candidate_id: str) -> list[tuple[TestSet, Crossing]]:
        """The other authors whose tests pass on a source, none of theirs failing; the statement by several probes."""
        return [
            (tests, crossing)
            for tests, crossing in self._foreign(candidate_id)
            if len(tests.shown_by(crossing)) >= (1 if tests.authors else PROBES_TO_VERIFY) and not crossing.failed
        ]

    def contest(self, candidate_id: str) -> tuple[str, str] | None:
        """Another candidate and a test of this one's own that fails there, where nobody stands behind the test.

        A source that fails all of them as the untouched source does has not tried, and contests nothing.
        """
        if self.supporters(candidate_id):
            return None
        for tests in self.examination.sets:
            if candidate_id not in tests.candidates:
                continue
            for crossing in sorted(tests.crossings, key=lambda crossing: crossing.candidate_id):
                failed = [failure for failure in crossing.failed if failure.test not in tests.proofs]
                tried = bool(tests.shown_by(crossing)) or not all(failure.unchanged for failure in failed)
                lone = [failure.test for failure in failed if not self.passers(tests, failure.test)]
                if tried and lone:
                    return crossing.candidate_id, lone[0]
        return None

    def undecided(self, candidate_id: str) -> tuple[str, str] | None:
        """Another candidate that passes every test which this one passes but for one probe, and that probe.

        Nobody else passes it: a single probe may be as wrong as whoever passes it.
        """
        for tests, crossing in self._foreign(candidate_id):
            lone = [test for test in crossing.passed if self.passers(tests, test) == (candidate_id,)]
            if tests.authors or len(lone) != 1:
                continue
            rest = self._passing(candidate_id) - {(tests.name, lone[0])}
            for other in tests.crossings:
                fails = any(failure.test == lone[0] for failure in other.failed)
                if fails and rest <= self._passing(other.candidate_id):
                    return other.candidate_id, lone[0]
        return None

    def judged(self, candidate_id: str, report: CheckReport) -> CheckReport:
        """The report with what the tests of others say, and with the verdict that it has beside the others.

        Nothing lifts what is refuted. What only its own tests verify is unverified where a test of another author
        speaks against it whose word counts no less, or where nobody stands behind its own tests and another candidate
        that tried fails one. What existing tests verify stays verified. What nothing has shown yet is verified by
        another author's tests: a test and a source of two authors who did not see each other's work agree. Probes of
        the statement do so only where several pass, and where tests ran that could have broken. Whom one probe alone
        tells from somebody else is unverified, unless existing tests verify it.
        """
        if not report.accepted or candidate_id not in self.examination.candidates or not self.examination.sets:
            return report
        passed, authors_asked = self.foreign_authors(candidate_id)
        failing = {tests.name: len(failed) for tests, failed in self.failures(candidate_id)}
        probes = next((crossing for tests, crossing in self._foreign(candidate_id) if not tests.authors), None)
        counts = (len(probes.passed), len(probes.passed) + len(probes.failed)) if probes is not None else (0, 0)
        foreign = ForeignTests(
            value=self.value(candidate_id),
            passed=passed,
            asked=authors_asked,
            failing=failing,
            failures=self._failure_texts(candidate_id),
            probes_passed=counts[0],
            probes_asked=counts[1],
        )
        return self._weighed(candidate_id, replace(report, foreign=foreign))

    def _failure_texts(self, candidate_id: str) -> tuple[str, ...]:
        """The first tests of others that fail on a source, each with what it said; of a probe the words it is for.

        A probe's command is for nobody who may still write a source: it would be solved instead of the task.
        """
        failed = [
            (failure.test if tests.authors else failure.test.partition(PROBE_MARK)[0], failure.message)
            for tests, crossing in self._foreign(candidate_id)
            for failure in crossing.failed
        ]
        return tuple(f"{test}: {message}" if message else test for test, message in failed[:_SAID])

    def _weighed(self, candidate_id: str, report: CheckReport) -> CheckReport:
        disputes = self.disputes(candidate_id)
        if report.verdict is Verdict.VERIFIED and report.shown_by_itself:
            reasons = [self._disputed(*dispute) for dispute in disputes]
            if not reasons and (contest := self.contest(candidate_id)):
                reasons = [f"nothing but its own tests shows it, and {contest[0]}'s change fails {contest[1]}"]
            if not reasons and (undecided := self.undecided(candidate_id)):
                reasons = ["only one probe of the statement tells it from {}'s change: {}".format(*undecided)]
            if reasons:
                return replace(report, verdict=Verdict.UNVERIFIED, reasons=(*reasons, *report.reasons))
        lifts = report.verdict is Verdict.UNVERIFIED and not disputes and not report.by_own_rules
        supporters = [
            supporter for supporter in self.supporters(candidate_id) if supporter[0].authors or _tested(report)
        ]
        if lifts and supporters and not self.undecided(candidate_id):
            tests = _listed([test for tests, crossing in supporters for test in tests.shown_by(crossing)])
            authors = _listed_authors([test_set for test_set, _ in supporters])
            reason = f"{authors} fail without the change and pass with it: {tests}"
            return replace(report, verdict=Verdict.VERIFIED, reasons=(reason, *report.reasons))
        return report

    def conflicts(self) -> Iterator[Conflict]:
        """Pairs of candidates that fail a test of each other's which nobody else's change passes."""
        for at, tests in enumerate(self.examination.sets):
            for others in self.examination.sets[at + 1 :]:
                ours, others_failure = self._lone_failure(tests, others), self._lone_failure(others, tests)
                if ours and others_failure:
                    yield Conflict(candidate_id=others.name, test=ours, other_id=tests.name, other_test=others_failure)

    def _lone_failure(self, tests: TestSet, others: TestSet) -> str:
        """A test that fails on the source of the authors of other tests, and that nobody else's change passes."""
        crossings = (tests.on(name) for name in others.candidates)
        failed = [failure.test for crossing in crossings if crossing is not None for failure in crossing.failed]
        return next((test for test in failed if not self.passers(tests, test)), "")

    def _foreign(self, candidate_id: str) -> list[tuple[TestSet, Crossing]]:
        return [
            (tests, crossing)
            for tests in self.examination.sets
            if candidate_id not in tests.candidates and (crossing := tests.on(candidate_id)) is not None
        ]

    @cached_property
    def _passed(self) -> Mapping[str, int]:
        def passes(name: str, tests: TestSet) -> bool:
            crossing = tests.on(name)
            if crossing is None or crossing.failed:
                return False
            return bool(crossing.passed if name in tests.candidates else tests.shown_by(crossing))

        sets = [tests for tests in self.examination.sets if tests.authors]
        return {name: sum(passes(name, tests) for tests in sets) for name in self.examination.candidates}

    def _passing(self, candidate_id: str) -> frozenset[tuple[str, str]]:
        """The tests that a source passes, with the names of their sets; its own are among them."""
        crossings = ((tests, tests.on(candidate_id)) for tests in self.examination.sets)
        return frozenset(
            (tests.name, test) for tests, crossing in crossings if crossing for test in tests.shown_by(crossing)
        )

    def _passers(self, tests: TestSet, failed: Sequence[str]) -> list[str]:
        return sorted({name for test in failed for name in self.passers(tests, test)})

    def _disputed(self, tests: TestSet, failed: Sequence[str]) -> str:
        """A dispute in words: whose tests fail, and who stands behind them."""
        passers = self._passers(tests, failed)
        counted = f"{len(failed)} {'test' if tests.authors else 'probe'}{'s' if failed[1:] else ''} of {tests.name}"
        if passers:
            counted += f", which {_listed(passers)}'s change passes too,"
        elif (others := max(map(self.authors_passed, tests.authors), default=0) - 1) > 0:
            counted += f", whose change passes the tests of {others} other author{'s' if others > 1 else ''},"
        return f"{counted} fail{'' if failed[1:] else 's'}: {_listed(failed)}"


def _tested(report: CheckReport) -> bool:
    """Whether tests or checks ran on it, so that something could have broken."""
    kinds = (CheckKind.DRY_RUN, CheckKind.COMMAND)
    return any(result.kind in kinds and result.passed and not result.skipped_reason for result in report.results)


def _listed_authors(test_sets: Sequence[TestSet]) -> str:
    """Whose tests these are, as the beginning of a sentence."""
    names = [tests.name for tests in test_sets if tests.authors]
    kinds = [f"the new tests of {_listed(names)}"] if names else []
    return " and ".join((*kinds, f"probes of {STATEMENT}") if len(names) < len(test_sets) else kinds)


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:_NAMED])
    return listed + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else "")
