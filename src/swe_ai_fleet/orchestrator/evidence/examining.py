"""The cross-examination of candidates on this node: the new tests of each run on the source of every other one."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from swe_ai_fleet.agents.review_proofs import proof_command
from swe_ai_fleet.domain.assignment import ExamineAssignment, Examinee
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.examination import STATEMENT, Examination, TestSet
from swe_ai_fleet.domain.test_run import Crossing, ForeignFailure, TestOutcome, TestResult, TestRun
from swe_ai_fleet.orchestrator.evidence.comparison import (
    asks_otherwise,
    lacks_environment,
    missing_names,
    passes,
    result_of,
)
from swe_ai_fleet.orchestrator.evidence.patch import Patch, parse_patch
from swe_ai_fleet.orchestrator.evidence.settings_changes import changed_rules
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles, holds_tests, is_test, language_of
from swe_ai_fleet.orchestrator.evidence.test_runs import NoRun, Suite, SuiteBench, SuiteSubject, selected
from swe_ai_fleet.ports import BlobStore, EvidenceWorkspaces, SecretMask

EXAMINE_SECONDS = 300.0
"""The time limit of all runs of an examination together; pairs that have not run by then have no result."""
PAIR_SECONDS = 90.0
"""The time limit of one run of one author's tests on one source: hanging tests must not take the others' time."""
MAX_PAIRS = 90
"""The most pairs of tests and sources; enough for all pairs of ten candidates."""
UNTOUCHED = "untouched"
"""The candidate id of the untouched commit, where there is no candidate."""
MAX_TESTS = 30
"""The most tests of one candidate."""
_AT_ONCE = 4
_RUNS = 2
_OUTPUT_CHARS = 2_000
_MESSAGES = 8
_MESSAGE_CHARS = 200
_NOTES = 10
_MOST_NAMES = 64
# Source files get a first line that is invalid in every language; other files get only that line.
_SPOIL = """\
for file; do
  case $file in --) text=gone; continue;; esac
  [ -f "$file" ] || continue
  if [ "$text" ]; then echo ')' > "$file"; continue; fi
  cp "$file" /tmp/kept && { echo ')'; cat /tmp/kept; } > "$file"
done
"""
_WORD = re.compile(r"\w+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The parts of a candidate: the patch of its source, that of its tests, and its test files.

    `changed` are the source files that it changes.
    """

    name: str
    subject: SuiteSubject
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    source: bytes = b""
    tests: bytes = b""
    files: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tests:
    """One set of tests: its authors, its tests by suite, and its words; or the probes of the statement."""

    parts: tuple[_Part, ...] = ()
    tests: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    words: frozenset[str]
    probes: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(part.name for part in self.parts)) or (STATEMENT,)

    @property
    def all(self) -> tuple[str, ...]:
        return (*(test for tests in self.tests.values() for test in tests), *self.probes)


@dataclass(kw_only=True)
class Examining:
    """Runs one examination; `base` is the untouched commit, `suites` are those of the task."""

    assignment: ExamineAssignment
    workspaces: EvidenceWorkspaces
    blobs: BlobStore
    bench: SuiteBench
    base: SuiteSubject
    suites: Sequence[Suite]
    mask: SecretMask
    _notes: list[str] = field(default_factory=list[str])

    async def run(self) -> Examination:
        """The matrix. A combination of patches that does not apply has no result; the notes say what was left out."""
        started_at = time.monotonic()
        parts = [part for examinee in self.assignment.examinees if (part := await self._part(examinee)) is not None]
        sets = _sets(parts)
        if requirements := self.assignment.requirements:
            words = frozenset(word for requirement in requirements for word in _WORD.findall(requirement.probe))
            probes = {requirement.name: requirement.probe for requirement in requirements}
            sets.append(_Tests(words=words, probes=probes))
            parts = parts if self.assignment.examinees else [_Part(name=UNTOUCHED, subject=self.base)]
        pairs = self._chosen([(tests, part) for tests in sets for part in parts if part not in tests.parts], parts)
        ran = list(zip(pairs, await self._all(pairs), strict=True))
        missing = {name for (test_set, _), run in ran for name in self._missing(test_set, run)}
        unknown = missing - await self._names_in_source(missing)
        crossings: dict[tuple[str, ...], list[Crossing]] = {test_set.names: [] for test_set in sets}
        for (test_set, part), run in sorted(ran, key=lambda pair_run: pair_run[0][1].name):
            crossings[test_set.names].append(self._crossing(test_set, part, run, unknown))
        examination = Examination(
            candidates=tuple(sorted(examinee.candidate_id for examinee in self.assignment.examinees)),
            sets=tuple(
                TestSet(candidates=test_set.names, tests=test_set.all, crossings=tuple(crossings[test_set.names]))
                for test_set in sorted(sets, key=lambda test_set: test_set.names)
            ),
            notes=tuple(map(self.mask, self._notes[:_NOTES])),
            duration_ms=round((time.monotonic() - started_at) * 1000),
        )
        return examination.with_conflicts()

    async def _part(self, examinee: Examinee) -> _Part | None:
        """The parts of a candidate; None where they cannot be separated."""
        try:
            data = await self.blobs.get(examinee.patch)
            patch = await asyncio.to_thread(parse_patch, data)
            subject = await self._subject(examinee.candidate_id, data)
        except FleetError as error:
            self._notes.append(f"{examinee.candidate_id} could not be examined: {error}")
            return None
        async with self.bench.clone("examine", subject) as clone:
            settings = await changed_rules(patch, CloneFiles(clone), self.suites, self.base.environment)
        sources = [file.path for file in patch.files if not is_test(file.path)]
        tests = [file.path for file in patch.files if is_test(file.path)]
        return _Part(
            name=examinee.candidate_id,
            subject=subject,
            own=examinee.tests,
            source=patch.without([*tests, *settings]),
            tests=patch.without([*sources, *settings]),
            files=tuple(path for path in patch.paths if holds_tests(path) and path not in settings),
            words=_words(patch, tests),
            changed=tuple(path for path in patch.paths if not is_test(path)),
        )

    async def _subject(self, name: str, data: bytes, like: SuiteSubject | None = None) -> SuiteSubject:
        """The untouched commit with a patch, in its own environment or in that of `like`. Raises FleetError."""
        patched = await self.workspaces.patched(self.assignment.execution_id, self.base.repository, data)
        environment = await self.workspaces.environment(patched, self.assignment.task.environment)
        if like is not None:
            environment = replace(like.environment, tree=environment.tree)
        return SuiteSubject(
            name=name, repository=patched, environment=replace(environment, network=self.base.environment.network)
        )

    def _chosen(self, pairs: list[tuple[_Tests, _Part]], parts: Sequence[_Part]) -> list[tuple[_Tests, _Part]]:
        """The pairs that are run: at most `MAX_PAIRS`, those of the best candidates first."""
        rank = {STATEMENT: 0, **{part.name: at for at, part in enumerate(parts)}}

        def order(pair: tuple[_Tests, _Part]) -> tuple[int, int]:
            of_tests, of_source = min(rank[name] for name in pair[0].names), rank[pair[1].name]
            return max(of_tests, of_source), of_tests + of_source

        if len(pairs) > MAX_PAIRS:
            dropped = len(pairs) - MAX_PAIRS
            self._notes.append(
                f"{dropped} of {len(pairs)} pairs were skipped (those of the candidates with the least evidence)"
            )
        return sorted(pairs, key=order)[:MAX_PAIRS]

    async def _all(self, pairs: Sequence[tuple[_Tests, _Part]]) -> list[_Ran | str]:
        """How each pair ended, or why it was not run."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def run(at: int, test_set: _Tests, part: _Part) -> _Ran | str:
            async with slots:
                if test_set.probes:
                    return await self._probed(test_set, part)
                return await self._crossed(f"cross{at}", test_set, part)

        limit = min(EXAMINE_SECONDS, self.assignment.task.constraints.limits.timeout_seconds or EXAMINE_SECONDS)
        tasks = [asyncio.create_task(run(at, *pair)) for at, pair in enumerate(pairs)]
        try:
            async with asyncio.timeout(limit):
                await asyncio.gather(*tasks)
        except TimeoutError:
            late = sum(not task.done() or task.cancelled() for task in tasks)
            self._notes.append(f"{late} of {len(pairs)} pairs were not run within {limit:g} s")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [f"not run within {limit:g} s" if task.cancelled() else task.result() for task in tasks]

    async def _crossed(self, name: str, test_set: _Tests, part: _Part) -> _Ran | str:
        """The tests on a source, repeated where some fail or the source has no telling tests of its own."""
        first = test_set.parts[0]
        try:
            subject = await self._subject(name, part.source + first.tests, part.subject)
            alone = await self._subject(f"{name}-base", first.tests, self.base)
        except FleetError as error:
            return str(error)
        ran = _Ran()
        for suite in self.suites:
            if not (tests := test_set.tests.get(suite.name)):
                continue
            base_run = await self.bench.attempt(self.base, suite)
            before = base_run if isinstance(base_run, TestRun) else None
            selection = selected(suite, first.files, before or TestRun())
            short = replace(suite, seconds=min(suite.seconds, PAIR_SECONDS))
            run = await self.bench.attempt(subject, short, selection, before=before)
            if isinstance(run, NoRun):
                return run.reason
            ran.take(tests, run)
            if any(not passes(run, test) for test in tests) or not part.own:
                again = await self.bench.attempt(subject, short, selection, before=before, repetition=1)
                ran.again(tests, again if isinstance(again, TestRun) else TestRun())
            without = await self.bench.attempt(alone, suite, selection, before=before)
            ran.without |= {test: result_of(without, test) for test in tests} if isinstance(without, TestRun) else {}
        return ran

    async def _probed(self, test_set: _Tests, part: _Part) -> _Ran | str:
        """The probes on a source, each twice in a clean clone: one with two different results says nothing.

        Nor does one that still passes after the files that the candidate changes were made unusable: it does not use
        them.
        """
        ran = _Ran()
        try:
            for name, command in test_set.probes.items():
                results = [await self._probe(command, part.subject) for _ in range(_RUNS)]
                if len({result.ok for result in results}) > 1:
                    ran.unsaid.append(name)
                elif not results[0].ok:
                    printed = results[0].stdout.text().strip() or f"exit code {results[0].exit_code}"
                    output = "it ran out of time" if results[0].timed_out else printed[-_OUTPUT_CHARS:]
                    short = output[-_MESSAGE_CHARS:]
                    ran.failed[name] = TestResult(outcome=TestOutcome.FAILED, message=short, traceback=output)
                elif part.changed and (await self._probe(command, part.subject, spoiled=part.changed)).ok:
                    ran.unsaid.append(name)
                else:
                    ran.passed.append(name)
        except FleetError as error:
            return str(error)
        return ran

    async def _probe(self, command: str, subject: SuiteSubject, *, spoiled: Sequence[str] = ()) -> CommandResult:
        """One run in a clean clone, in which some files were made unusable. Raises what opening a clone raises."""
        task = self.assignment.task
        sources = [path for path in spoiled if language_of(path)]
        others = [path for path in spoiled if path not in sources]
        files = (*(f"./{path}" for path in sources), "--", *(f"./{path}" for path in others))
        async with self.bench.clone("probe", subject) as clone:
            if spoiled:
                await clone.run(Command(argv=("sh", "-c", _SPOIL, "sh", *files), light=True, timeout_seconds=30.0))
            line = proof_command(command, task, clone.environment)
            return await clone.run(replace(line, cwd=task.repo.subdirectory or "."))

    def _missing(self, test_set: _Tests, run: _Ran | str) -> set[str]:
        """The names that failing tests report as missing: words of the tests that are not in the task."""
        failed = () if isinstance(run, str) else run.failed.values()
        missing = {name for result in failed for name in missing_names(result)}
        return missing.intersection(test_set.words) - self._task_words

    @cached_property
    def _task_words(self) -> frozenset[str]:
        return frozenset(word for text in self.assignment.task.texts for word in _WORD.findall(text))

    async def _names_in_source(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are anywhere in the untouched source."""
        if not (searched := sorted(names)[:_MOST_NAMES]):
            return set()
        async with self.bench.clone("examine", self.base) as clone:
            argv = ("git", "-c", "core.fsmonitor=false", "grep", "--quiet", "-w", "-F", "-I", "-e")
            grep = Command(argv=argv, light=True, timeout_seconds=30.0)
            return {name for name in searched if (await clone.run(replace(grep, argv=(*argv, name)))).ok}

    def _crossing(self, test_set: _Tests, part: _Part, run: _Ran | str, unknown: Collection[str]) -> Crossing:
        name = part.name
        if isinstance(run, str):
            return Crossing(candidate_id=name, note=self.mask(run)[:_MESSAGE_CHARS])
        # The statement may ask for a name that the untouched commit lacks.
        unknown = () if part.subject is self.base else unknown
        unsaid = [test for test, result in run.failed.items() if self._says_nothing(test_set, result, unknown)]
        failed = [(test, result) for test, result in run.failed.items() if test not in unsaid]
        return Crossing(
            candidate_id=name,
            passed=tuple(run.passed),
            failed=tuple(
                ForeignFailure(
                    test=test,
                    message=self.mask(result.message)[:_MESSAGE_CHARS] if at < _MESSAGES else "",
                    unchanged=_same(result, run.without.get(test)),
                )
                for at, (test, result) in enumerate(failed)
            ),
            unsaid=(*run.unsaid, *unsaid),
        )

    def _says_nothing(self, test_set: _Tests, result: TestResult, unknown: Collection[str]) -> bool:
        """Whether a failing test uses a name that only its author's source defines, or lacks an environment."""
        if names := [name for name in missing_names(result) if name in test_set.words]:
            return any(name in unknown for name in names)
        return asks_otherwise(result, test_set.words) or lacks_environment(result)


@dataclass(slots=True)
class _Ran:
    """How the tests of a set ended on a source, and on the untouched one."""

    passed: list[str] = field(default_factory=list[str])
    failed: dict[str, TestResult] = field(default_factory=dict[str, TestResult])
    unsaid: list[str] = field(default_factory=list[str])
    without: dict[str, TestResult | None] = field(default_factory=dict[str, "TestResult | None"])

    def take(self, tests: Iterable[str], run: TestRun) -> None:
        for test in tests:
            result = result_of(run, test)
            if passes(run, test):
                self.passed.append(test)
            elif result is not None and result.outcome.bad:
                self.failed[test] = result
            else:
                self.unsaid.append(test)

    def again(self, tests: Iterable[str], run: TestRun) -> None:
        """Treat tests with a different result in a second run as saying nothing."""
        for test in tests:
            result = result_of(run, test)
            if test in self.passed and not passes(run, test):
                self.passed.remove(test)
                self.unsaid.append(test)
            elif test in self.failed and (result is None or not result.outcome.bad):
                del self.failed[test]
                self.unsaid.append(test)


def _sets(parts: Sequence[_Part]) -> list[_Tests]:
    """The sets of tests; candidates with equal test files share one."""
    by_digest: dict[str, list[_Part]] = {}
    for part in parts:
        if part.files and any(part.own.values()):
            by_digest.setdefault(hashlib.sha256(part.tests).hexdigest(), []).append(part)
    sets: list[_Tests] = []
    for same in by_digest.values():
        tests = {
            suite: tuple(test for test in tests if all(test in part.own.get(suite, ()) for part in same))
            for suite, tests in same[0].own.items()
        }
        if any(tests.values()):
            tests_by_suite = {suite: names[:MAX_TESTS] for suite, names in tests.items()}
            sets.append(_Tests(parts=tuple(same), tests=tests_by_suite, words=same[0].words))
    return sets


def _words(patch: Patch, paths: Collection[str]) -> frozenset[str]:
    """The words of the lines that a patch adds to some files, and of the lines around them."""
    lines = (line.text for file in patch.files if file.path in paths for line in file.lines(" +"))
    return frozenset(word for line in lines for word in _WORD.findall(line))


def _same(now: TestResult, before: TestResult | None) -> bool:
    """Whether a test fails with the same message as on the untouched source."""
    return before is not None and _HEX.sub("", now.message) == _HEX.sub("", before.message)
