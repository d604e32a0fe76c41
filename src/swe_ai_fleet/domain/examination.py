"""Cross-examination: the new tests of each candidate on the source of every other one, and the verdicts they imply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

from swe_ai_fleet.domain.candidate import CheckKind, CheckReport, ForeignTests, Verdict
from swe_ai_fleet.domain.test_run import Crossing, ForeignFailure
from swe_ai_fleet.domain.text import first_names, one_line

STATEMENT = "the statement"
"""The author id of probes: it has no source, and has seen nobody's. Candidate ids contain no space."""
PROBE_MARK = ": `"
"""In the name of a probe, between the words of the statement and the command."""
LITTLE = 0.25
"""The weight of a test that only its author supports: it may be wrong."""
PROBES_TO_VERIFY = 2
"""How many probes must pass to verify a candidate without other evidence: no single probe is known to be right."""
_NEUTRAL = 0.5

_MAX_FAILURES = 5
_COMMAND_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSet:
    """The new tests of one candidate, or of several with the same tests.

    Each of `tests` fails on the untouched source and passes on the source of each of `candidates`, its authors; the
    probes of the task's statement are tests of STATEMENT, which has no source. `proofs` are those tests that are
    commands with which an author showed a fault of another source in a review: their author has seen that source, and
    they may pass on the untouched one. So a proof counts against the sources that fail it, the more the more others
    pass it, and never in favour of a source.
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
        """The candidates whose own source passes the tests; none for probes of the statement."""
        return () if self.candidates == (STATEMENT,) else self.candidates

    def on(self, candidate_id: str) -> Crossing | None:
        """How its tests ended on a source; None where they were not run there."""
        if candidate_id in self.candidates:
            return Crossing(candidate_id=candidate_id, passed=self.tests)
        return next((crossing for crossing in self.crossings if crossing.candidate_id == candidate_id), None)

    def shown_by(self, crossing: Crossing) -> tuple[str, ...]:
        """The tests that pass in a crossing, proofs excluded."""
        return tuple(test for test in crossing.passed if test not in self.proofs)

    def with_fault(self, fault: ShownFault) -> TestSet:
        """The test set with a fault that its author showed; the command is the name of the test."""
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
    """Two candidates that each fail a test of the other which no third change passes: one of the two is wrong."""

    candidate_id: str
    test: str
    other_id: str
    other_test: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFault:
    """A fault of one candidate's source, shown by another author with a command that passes on the author's own source.

    Of the other candidates the command passes on those in `passes_on`, and fails on those in `fails_on`.
    """

    author_id: str
    candidate_id: str
    command: str
    seen: str = ""
    passes_on: tuple[str, ...] = ()
    fails_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A matrix of sources and tests. Each of `candidates` stands for one source; equal behaviour is one source."""

    candidates: tuple[str, ...] = ()
    sets: tuple[TestSet, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()
    duration_ms: int = 0

    def with_conflicts(self) -> Examination:
        """The examination with its conflicts."""
        return replace(self, conflicts=tuple(Matrix(self).conflicts()))

    def with_faults(self, faults: Iterable[ShownFault]) -> Examination:
        """The examination with shown faults as tests of the authors who showed them."""
        sets = list(self.sets)
        for fault in sorted(faults, key=lambda shown: (shown.author_id, shown.candidate_id, shown.command)):
            at = next((at for at, test_set in enumerate(sets) if fault.author_id in test_set.candidates), len(sets))
            own = sets[at] if at < len(sets) else TestSet(candidates=(fault.author_id,), tests=())
            sets[at:] = [own.with_fault(fault), *sets[at + 1 :]]
        return replace(self, sets=tuple(sets))


@dataclass(frozen=True)
class Matrix:
    """The conclusions of an examination. Counts are by author: many tests of one author weigh no more than few.

    That programs and tests which agree are right more often is CodeT's dual execution agreement (Chen et al., 2022,
    arXiv:2207.10397); CodeMonkeys lets the tests of all candidates vote (Ehrlich et al., 2025, arXiv:2501.14723).
    """

    examination: Examination

    def authors_passed(self, candidate_id: str) -> int:
        """How many authors' tests a source passes, where they ran to a result; its own author is included.

        The statement is not: no source shows that its probes are right.
        """
        return self._passed.get(candidate_id, 0)

    def foreign_authors(self, candidate_id: str) -> tuple[int, int]:
        """Of how many other authors all tests pass, and of how many any test ran to a result."""
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
        """How the tests of all authors rate a source: 0 all against, 1 all in favour, 0.5 without any result.

        `(1/2 + sum(weights in favour)) / (1 + sum(all weights))`, each author counted once by the weightiest test
        that fails, else by the weightiest that passes. Its own tests count where others pass them too: then all who
        pass a test are equal, and nobody is judged by their own word.
        """
        weights: list[tuple[float, bool]] = []
        for tests in self.examination.sets:
            crossing = tests.on(candidate_id)
            if crossing is None:
                continue
            against = max((self.weight(tests, failure.test) for failure in crossing.failed), default=0.0)
            weights += [(against, False)] if against else []
            own = candidate_id in tests.candidates
            passed = [test for test in tests.shown_by(crossing) if not own or self.passers(tests, test)]
            if passed and against <= LITTLE:
                weights.append((max(self.weight(tests, test) for test in passed), True))
        # fsum is exact: the result must not depend on the order of candidates.
        in_favour = fsum(weight for weight, favours in weights if favours)
        return (_NEUTRAL + in_favour) / (1 + fsum(weight for weight, _ in weights))

    def weight(self, tests: TestSet, test: str) -> float:
        """The weight of a test: `(n + 1/4) / (n + 1)`, below 1, where n other authors support it.

        These are the authors of other sources that pass it. Where there is none, they are those whose tests its
        author's source passes, if it fails no other author's tests: nothing contradicts it. Without support the weight
        is half of that where others pass none of its author's tests. For a probe the first source that passes counts
        as the author's own.
        """
        supporters = len(self.passers(tests, test))
        if not tests.authors:
            supporters = max(0, supporters - 1)
        elif not supporters:
            unopposed = [name for name in tests.authors if not self.failures(name)]
            supporters = max((self.authors_passed(name) - 1 for name in unopposed), default=0)
        if not supporters and not any(self.passers(tests, other) for other in tests.tests):
            return LITTLE / 2
        return (supporters + LITTLE) / (supporters + 1)

    def disputes(self, candidate_id: str) -> list[tuple[TestSet, tuple[str, ...]]]:
        """The failing tests of authors whose own source passes the tests of at least as many authors.

        For a probe of the statement the sources that pass it count as its authors: a probe that no source passes may be
        wrong itself.
        """
        own = self.authors_passed(candidate_id)
        return [
            (tests, failed)
            for tests, failed in self.failures(candidate_id)
            if any(self.authors_passed(name) >= own for name in tests.authors or self._passers(tests, failed))
        ]

    def supporters(self, candidate_id: str) -> list[tuple[TestSet, Crossing]]:
        """The other authors whose tests all pass on a source; the statement only with several probes."""
        return [
            (tests, crossing)
            for tests, crossing in self._foreign(candidate_id)
            if len(tests.shown_by(crossing)) >= (1 if tests.authors else PROBES_TO_VERIFY) and not crossing.failed
        ]

    def contest(self, candidate_id: str) -> tuple[str, str] | None:
        """Another candidate that fails one of this candidate's own, unsupported tests, and that test, or None.

        A source that fails all of them just as the untouched source does has not tried, and contests nothing.
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
        """Another candidate that passes all this one's passing tests but one probe, and that probe, or None.

        No other candidate passes the probe: it may be wrong, and the candidate that passes it, too.
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
        """The report with the results of others' tests, and with the verdict in comparison with the other candidates.

        A refuted candidate stays refuted, and one that existing tests verify stays verified. One that only its own
        tests verify becomes unverified where a test of another author fails whose source passes the tests of as many
        authors, or where nobody supports its own tests and another candidate that tried fails one. An unverified
        candidate becomes verified by another author's tests: a test and a source agree whose authors did not see each
        other's work. Probes of the statement verify only where several pass, and where tests ran that could have
        broken. A candidate that only one probe distinguishes from another is unverified, unless existing tests verify
        it.
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
        return self._with_verdict(candidate_id, replace(report, foreign=foreign))

    def _failure_texts(self, candidate_id: str) -> tuple[str, ...]:
        """The first tests of others that fail on a source, each with its message; a probe by its words alone.

        Authors who may still write a source must not see a probe's command: they would solve it instead of the task.
        """
        failed = [
            (failure.test if tests.authors else failure.test.partition(PROBE_MARK)[0], failure.message)
            for tests, crossing in self._foreign(candidate_id)
            for failure in crossing.failed
        ]
        return tuple(f"{test}: {message}" if message else test for test, message in failed[:_MAX_FAILURES])

    def _with_verdict(self, candidate_id: str, report: CheckReport) -> CheckReport:
        disputes = self.disputes(candidate_id)
        if report.verdict is Verdict.VERIFIED and report.shown_by_itself:
            reasons = [self._dispute_text(*dispute) for dispute in disputes]
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
            tests = first_names([test for tests, crossing in supporters for test in tests.shown_by(crossing)])
            authors = _listed_authors([test_set for test_set, _ in supporters])
            reason = f"{authors} fail without the change and pass with it: {tests}"
            return replace(report, verdict=Verdict.VERIFIED, reasons=(reason, *report.reasons))
        return report

    def conflicts(self) -> Iterator[Conflict]:
        """Pairs of candidates that fail a test of each other which no third change passes."""
        for at, tests in enumerate(self.examination.sets):
            for others in self.examination.sets[at + 1 :]:
                ours, others_failure = self._lone_failure(tests, others), self._lone_failure(others, tests)
                if ours and others_failure:
                    yield Conflict(candidate_id=others.name, test=ours, other_id=tests.name, other_test=others_failure)

    def _lone_failure(self, tests: TestSet, others: TestSet) -> str:
        """A test that fails on the source of the authors of `others`, and that no third change passes; empty: none."""
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
        """The tests that a source passes, each with the name of its set; its own included."""
        crossings = ((tests, tests.on(candidate_id)) for tests in self.examination.sets)
        return frozenset(
            (tests.name, test) for tests, crossing in crossings if crossing for test in tests.shown_by(crossing)
        )

    def _passers(self, tests: TestSet, failed: Sequence[str]) -> list[str]:
        return sorted({name for test in failed for name in self.passers(tests, test)})

    def _dispute_text(self, tests: TestSet, failed: Sequence[str]) -> str:
        """A dispute in words: whose tests fail, and who supports them."""
        passers = self._passers(tests, failed)
        counted = f"{len(failed)} {'test' if tests.authors else 'probe'}{'s' if failed[1:] else ''} of {tests.name}"
        if passers:
            counted += f", which {first_names(passers)}'s change passes too,"
        elif (others := max(map(self.authors_passed, tests.authors), default=0) - 1) > 0:
            counted += f", whose change passes the tests of {others} other author{'s' if others > 1 else ''},"
        return f"{counted} fail{'' if failed[1:] else 's'}: {first_names(failed)}"


def _tested(report: CheckReport) -> bool:
    """Whether tests or checks ran on it, so that something could have broken."""
    kinds = (CheckKind.DRY_RUN, CheckKind.COMMAND)
    return any(result.kind in kinds and result.passed and not result.skipped_reason for result in report.results)


def _listed_authors(test_sets: Sequence[TestSet]) -> str:
    """The authors of tests, as the beginning of a sentence."""
    names = [tests.name for tests in test_sets if tests.authors]
    kinds = [f"the new tests of {first_names(names)}"] if names else []
    return " and ".join((*kinds, f"probes of {STATEMENT}") if len(names) < len(test_sets) else kinds)
