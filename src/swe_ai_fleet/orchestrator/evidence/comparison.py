"""A candidate's test results held against those of the untouched commit, test by test. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.orchestrator.evidence.source_files import is_test, language_of, may_be_compiled_from

WHOLE_RUN = "the test run as a whole"
"""Stands among tests for a run that ends badly although no test fails."""
_ALIKE_SHARE = 0.6
_WORDS = re.compile(r"\w+")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_PARAMETERS = re.compile(r"\[.*\]$", re.S)
# What a test says that lacks something of its environment: a network, a service, a program, a package.
_SURROUNDINGS = re.compile(
    r"ConnectionError|ConnectionRefused|ConnectError|MaxRetryError|NewConnectionError|gaierror|URLError"
    r"|Network is unreachable|Name or service not known|Temporary failure in name resolution|getaddrinfo"
    r"|ECONNREFUSED|ENOTFOUND|EAI_AGAIN"
    r"|ModuleNotFoundError|No module named|Cannot find (?:module|package)|fixture '[^']*' not found|command not found"
    r"|No such file or directory: '[\w.+-]+'|executable file not found|PermissionError|Operation not permitted"
    r"|DockerException|Cannot connect to the Docker daemon|no usable temporary directory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the tests of a candidate stand to those of the untouched commit. Ids of tests, each in one list.

    Attributes:
        shown: They fail without the change and pass with it.
        broken: They passed without the change and fail with it.
        own_failing: Tests that the candidate adds or changes, and that fail on its own source.
        named: The task names them, and they still fail.
        otherwise: They failed before and fail now, in another way: the change works on them and does not fix them.
        old: They failed before and fail now.
        unable: Tests of the candidate's own that lack something of their environment, with and without the change.
        vanished: Test functions that passed before and were not run although their files are untouched.
        own: Tests that the candidate adds, or that its change of a test file makes fail on the untouched source.
        own_shown: Those of `own` that fail without the change.
        by_own_rules: They passed without the change, and pass with it only as the change has tests run.
    """

    shown: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    own_failing: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    unable: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    own_shown: tuple[str, ...] = ()
    by_own_rules: tuple[str, ...] = ()

    @property
    def against(self) -> tuple[str, ...]:
        """What speaks against the candidate."""
        return (*self.broken, *self.own_failing, *self.named, *self.otherwise, *self.vanished)


def compare(
    after: TestRun, before: TestRun, own: TestRun | None, touched: Touched, names: TaskNames, *, strict: bool = False
) -> Comparison:
    """The comparison of three runs.

    Args:
        after: The tests on the candidate.
        before: The tests on the untouched commit.
        own: The candidate's test files on the untouched source; None where it changes none, or they can't be run apart.
        touched: The test files that the candidate changes.
        names: What the task speaks of.
        strict: Tests of a check that the caller named: all of them have to pass.
    """
    earlier = _ByFunction(before)
    without = _ByFunction(own) if own is not None else None
    kinds = ("broken", "own_failing", "named", "otherwise", "old", "unable")
    by_kind: dict[str, list[str]] = {name: [] for name in kinds}
    for test in after.failing:
        result = after.results[test]
        was = earlier.result(test)
        mine = touched.has(test)
        if was is not None and not mine and was.outcome is TestOutcome.PASSED:
            kind = "broken"
        elif was is not None and was.outcome.bad:
            # It never worked. Where the task is about it, it has to now.
            lacks = lacks_environment(result)
            about = strict or (names.name(test) and not lacks)
            kind = "named" if about else "old" if lacks or alike(result.message, was.message) else "otherwise"
        elif without is not None and _lacks_alike(result, without.result(test)):
            kind = "unable"
        elif was is None and not mine and (before.stopped or not before.reported):
            kind = "old"  # nobody knows how it stood before
        else:
            kind = "own_failing" if mine or was is None else "broken"
        by_kind[kind].append(test)
    if before.reported and (more := _unnamed_failures(after) - _unnamed_failures(before)) > 0:
        by_kind["broken"].append(f"{more} tests that are only counted")
    if _ends_badly(after, before):
        by_kind["broken"].append(WHOLE_RUN)
    passing = after.passing
    fixed = [*(test for test in passing if earlier.failed(test)), *_only_counted(after, before)]
    fresh = [test for test in passing if without is not None and touched.has_or_feeds(test) and without.failed(test)]
    if own is not None:
        fresh += [test for test in _only_counted(after, own) if touched.has_or_feeds(test)]
    new = [test for test in (*passing, *by_kind["own_failing"]) if test not in before.results]
    added = [test for test in new if touched.has_or_feeds(test)]
    return Comparison(
        shown=_once(fixed, fresh),
        vanished=_vanished(after, before, touched),
        own=_once(added, fresh),
        own_shown=tuple(fresh),
        **{kind: tuple(tests) for kind, tests in by_kind.items()},
    )


class TaskNames:
    """What a task speaks of: tests named there have to pass."""

    def __init__(self, task: Task) -> None:
        text = "\n".join(task.texts)
        self._words = frozenset(word.strip(".,:;!?()[]`'\"") for word in re.split(r"[\s`'\"(),;]+", text))

    def name(self, test: str) -> bool:
        """Whether a test's id, its file or its own name is among the words."""
        path, mark, inside = test.partition("::")
        own = (inside.rpartition("::")[2] if mark else test.rpartition(".")[2]).partition("[")[0]
        files = python_files(test) if not mark else [path]
        telling = [word for file in files for word in (file, PurePosixPath(file).name) if "." in word]
        if "_" in own or own.lower().startswith("test"):  # other names are words that any text may hold
            telling.append(own)
        return any(word in self._words for word in (test, *telling))

    def files(self, paths: Iterable[str]) -> list[str]:
        """Those of the paths that are named, or hold a test function that is."""
        return [path for path in paths if path in self._words or PurePosixPath(path).name in self._words]


class Touched:
    """The test files that a patch changes, and which tests lie in them.

    Args:
        paths: All files that it changes.
        inline: Source files whose own tests it changes.
        readers: Test files that it leaves alone and that read some of those that it changes.
    """

    def __init__(self, paths: Iterable[str], inline: Iterable[str] = (), readers: Iterable[str] = ()) -> None:
        self._paths, self._sources, self._readers = tuple(paths), tuple(inline), tuple(readers)
        self.files = (*(path for path in self._paths if is_test(path)), *self._sources)
        self._inline = [_rust_module(path) for path in self._sources]
        self._modules = tuple(str(PurePosixPath(path).with_suffix("")).replace("/", ".") for path in self.files)
        self._directories = {str(PurePosixPath(path).parent) for path in self.files}

    def read_by(self, readers: Iterable[str]) -> Touched:
        """The same with test files that read some of the files."""
        return Touched(self._paths, self._sources, readers)

    def has_or_feeds(self, test: str) -> bool:
        """Whether a test lies in one of the files, or reads one of them."""
        return self.has(test) or (bool(self._readers) and Touched(self._readers).has(test))

    def has(self, test: str) -> bool:
        """Whether a test lies in one of the files, as far as its id tells; where it names no file, any may be meant."""
        if not self.files:
            return False
        place, mark, inside = test.partition("::")
        if any(f"::{inside}".startswith(f"::{module}") for module in self._inline if place.endswith(".rs")):
            return True
        if language_of(place):
            # A runner's root may lie below the repository's, or above it.
            return any(
                path == place
                or path.endswith(f"/{place}")
                or place.endswith(f"/{path}")
                or may_be_compiled_from(place, path)
                for path in self.files
            )
        if mark:  # a Go package, a crate: some directory of the repository, or its root
            return "." in self._directories or any(f"/{place}".endswith(f"/{name}") for name in self._directories)
        dotted = function_of(test).split(" ")[0]
        return "." not in dotted or any(f".{dotted}.".find(f".{module}.") >= 0 for module in self._modules)


def _rust_module(path: str) -> str:
    """The module of a Rust source file as names of tests begin with it; empty for the root of a crate."""
    parts = PurePosixPath(path).with_suffix("").parts
    inside = parts[parts.index("src") + 1 :] if "src" in parts else parts[-1:]
    names = [name for name in inside if name not in ("lib", "main", "mod")]
    return "".join(f"{name}::" for name in names)


def function_of(test: str) -> str:
    """A test's id without its parameters, which may differ between any two runs."""
    return _PARAMETERS.sub("", test)


def python_files(test: str) -> list[str]:
    """The files that a dotted name may lead to, the longest first; the name itself, should it be one."""
    parts = test.split(".")[:20]
    return [test, *("/".join(parts[:end]) + ".py" for end in range(len(parts) - 1, 0, -1))]


def alike(one: str, other: str) -> bool:
    """Whether two messages say the same: the same kind of fault, and most words in common.

    Numbers do not matter; names of temporary files and the order in sets may differ between any two runs.
    """
    first, second = (_WORDS.findall(_NUMBERS.sub("0", message)) for message in (one, other))
    if first[:1] != second[:1]:
        return False
    together = len({*first, *second})
    return not together or len({*first} & {*second}) >= _ALIKE_SHARE * together


def lacks_environment(result: TestResult) -> bool:
    """Whether a test failed for want of something that is not the repository's: a network, a service, a package."""
    return bool(_SURROUNDINGS.search(result.message) or _SURROUNDINGS.search(result.traceback))


class _ByFunction:
    """The results of a run by id, by file, and by function, for ids whose parameters vary."""

    def __init__(self, run: TestRun) -> None:
        self._results = run.results
        self._functions: dict[str, TestResult] = {}
        self._files: dict[str, TestResult] = {}
        for test, result in run.results.items():
            if result.outcome is TestOutcome.PASSED:
                self._files.setdefault(test.partition("::")[0], result)
            function = function_of(test)
            known = self._functions.get(function)
            if known is None or (result.outcome.bad and not known.outcome.bad):
                self._functions[function] = result

    def result(self, test: str) -> TestResult | None:
        """How a test ended; a file that cannot be collected stands for its tests, and they for it."""
        known_result = self._results.get(test) or self._functions.get(function_of(test))
        if known_result is not None:
            return known_result
        return self._results.get(test.partition("::")[0]) if "::" in test else self._files.get(test)

    def failed(self, test: str) -> bool:
        result = self._results.get(test)
        if result is None:
            # Another parameter of the same function proves nothing; a file that could not be collected does.
            result = self._results.get(test.partition("::")[0]) if "::" in test else None
        return result is not None and result.outcome.bad


def _lacks_alike(now: TestResult, without: TestResult | None) -> bool:
    """Whether a test lacks the same of its environment with and without the change."""
    return (
        without is not None and without.outcome.bad and lacks_environment(now) and alike(now.message, without.message)
    )


def _ends_badly(after: TestRun, before: TestRun) -> bool:
    """Whether the run as a whole fails although no test does, which it did not before: a hook, a limit, a crash."""
    if before.exit_code != 0 or before.stopped or after.exit_code == 0 or after.failing or after.unnamed.failed:
        return False
    if after.stopped and after.exit_code is None:
        return False  # it timed out
    return bool(after.reported or before.reported or not before.framework)


def passes(run: TestRun, test: str) -> bool:
    """Whether a test passed; one that a runner would have named, had it failed, passed if others were counted."""
    if test in run.results:
        return run.results[test].outcome is TestOutcome.PASSED
    return run.unnamed.passed > 0 and not run.stopped


def result_of(run: TestRun, test: str) -> TestResult | None:
    """How a test ended, or the file that it could not be collected from; None where nothing is known of either."""
    result = run.results.get(test) or run.results.get(test.partition("::")[0])
    if result is not None:
        return result
    return next(
        (test_result for name, test_result in run.results.items() if function_of(name) == function_of(test)), None
    )


def _only_counted(after: TestRun, earlier: TestRun) -> list[str]:
    """Tests that failed by name in an earlier run and are among those that a later one only counted as passed."""
    uncounted = [test for test in earlier.failing if test not in after.results and passes(after, test)]
    return uncounted if after.unnamed.passed - earlier.unnamed.passed >= len(uncounted) else []


def _unnamed_failures(run: TestRun) -> int:
    return run.unnamed.failed + run.unnamed.errors


def _vanished(after: TestRun, before: TestRun, touched: Touched) -> tuple[str, ...]:
    if after.stopped or before.stopped:
        return ()  # the same set of tests on both sides is what can be compared
    there = {function_of(test) for test in after.results}
    uncollected = {test for test in after.failing if "::" not in test}
    vanished: dict[str, None] = {}
    for test in before.passing:
        function = function_of(test)
        if function in there or touched.has(test) or test.partition("::")[0] in uncollected:
            continue
        vanished[function] = None
    if after.unnamed.passed < before.unnamed.passed and not touched.files and not vanished and not after.failing:
        vanished[f"{before.unnamed.passed - after.unnamed.passed} tests that are only counted"] = None
    return tuple(vanished)


def _once(*lists: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(test for tests in lists for test in tests))


def counts(run: TestRun) -> str:
    """A run in numbers, in words: `308 passed, 3 failed, 1 cannot run`."""
    summary = run.summary
    parts: Mapping[str, int] = {
        "passed": summary.passed,
        "failed": summary.failed,
        "cannot run": summary.errors,
        "skipped": summary.skipped,
    }
    return ", ".join(f"{number} {outcome}" for outcome, number in parts.items() if number) or "no test ran"


def conclusive(again: TestRun, first: TestRun) -> bool:
    """Whether a test that is not among the failures of a further run has passed it."""
    if not again.ran or (again.stopped and again.exit_code is None) or again.unnamed.failed:
        return False
    # Some runners name a test otherwise when only a part is run: a failure that nobody knows may be any of them.
    return all(test in first.results for test in again.failing)


def fails(run: TestRun, test: str) -> bool:
    """Whether a test failed in a run."""
    result = result_of(run, test)
    return result is not None and result.outcome.bad
