"""The comparison of a candidate's test results with those of the untouched commit, test by test. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.domain.text import first_names
from swe_ai_fleet.orchestrator.evidence.relevance import TaskNames, Touched, function_of

WHOLE_RUN = "the test run as a whole"
"""In lists of tests, a run that fails although no test does."""
_ALIKE_SHARE = 0.6
_WORDS = re.compile(r"\w+")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
# Messages of tests with an incomplete environment: a missing network, service, program or package.
_ENVIRONMENT = re.compile(
    r"ConnectionError|ConnectionRefused|ConnectError|MaxRetryError|NewConnectionError|gaierror|URLError"
    r"|Network is unreachable|Name or service not known|Temporary failure in name resolution|getaddrinfo"
    r"|ECONNREFUSED|ENOTFOUND|EAI_AGAIN"
    r"|ModuleNotFoundError|No module named|Cannot find (?:module|package)|fixture '[^']*' not found|command not found"
    r"|No such file or directory: '[\w.+-]+'|executable file not found|PermissionError|Operation not permitted"
    r"|DockerException|Cannot connect to the Docker daemon|no usable temporary directory"
)
# Messages of tests that use a missing name; the last word of the group is the name.
_MISSING = re.compile(
    r"cannot import name '(\w+)'|No module named '([\w.]+)'"
    r"|(?<!'NoneType' object )has no attribute '(\w+)'"
    r"|name '(\w+)' is not defined|unexpected keyword argument '(\w+)'"
    r"|([\w.$]+)\)? is not a (?:function|constructor)|does not provide an export named '(\w+)'"
    r"|([\w$]+) is not defined|Cannot read propert(?:y|ies) of undefined \(reading '(\w+)'\)"
    r"|Cannot find module '([^']+)'|Property '(\w+)' does not exist|has no exported member '(\w+)'"
    r"|undefined: ([\w.]+)|([\w.]+) undefined \(type|unknown field (\w+) in struct"
    r"|cannot find (?:function|value|type|macro|struct[\w, ]*|module or crate) `(\w+)`"
    r"|unresolved import `([\w:]+)`|no (?:method|field|function or associated item) (?:named )?`(\w+)`"
    r"|has no field named `(\w+)`"
)
# Messages of tests that call something with wrong arguments.
_SIGNATURE = re.compile(
    r"([\w.<>]+)\(\) (?:takes .{1,80} but .{1,40} (?:was|were) given|missing \d+ required .{1,40} arguments?)"
    r"|(?:too many|not enough) arguments in call to ([\w.]+)"
)
_ARITY = re.compile(r"this (?:function|method) takes \d+ arguments? but|Expected \d+(?:-\d+)? arguments, but got \d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The tests of a candidate compared with those of the untouched commit. Ids of tests; failing ones are in one list.

    Attributes:
        shown: Tests that fail without the change and pass with it.
        broken: Tests that passed before and fail now.
        own_failing: Tests that the candidate adds or changes, and that fail on its own source.
        named: Failing tests that the task names; for a check of the caller's all that failed before and fail now.
        otherwise: Tests that failed before and fail now with a different message: the change affects them without
            fixing them.
        old: Tests that failed before and fail now in the same way.
        unable: Tests of the candidate's own whose environment lacks something, with and without the change.
        vanished: Test functions that passed before and were not run although their files are untouched.
        own: Tests that the candidate adds, or that its change of a test file makes fail on the untouched source.
        own_shown: Those of `own` that fail without the change.
        by_own_rules: Tests that pass only under the change's own test configuration.
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
        """The tests that count against the candidate."""
        return (*self.broken, *self.own_failing, *self.named, *self.otherwise, *self.vanished)

    def showing(self, tests: Collection[str]) -> Comparison:
        """The comparison with `shown` restricted to these tests."""
        shown, own_shown = (tuple(test for test in of if test in tests) for of in (self.shown, self.own_shown))
        return replace(self, shown=shown, own_shown=own_shown)


def compare(
    after: TestRun, before: TestRun, own: TestRun | None, touched: Touched, names: TaskNames, *, strict: bool = False
) -> Comparison:
    """The comparison of three runs.

    Args:
        own: The candidate's test files on the untouched source; None: there are none, or they cannot be run apart.
        strict: The tests are those of a check of the caller's: all of them have to pass.
    """
    earlier = _ByFunction(before)
    without = _ByFunction(own) if own is not None else None
    kinds = ("broken", "own_failing", "named", "otherwise", "old", "unable")
    by_kind: dict[str, list[str]] = {name: [] for name in kinds}
    for test in after.failing:
        result = after.results[test]
        old = earlier.result(test)
        is_touched = touched.has(test)
        if old is not None and not is_touched and old.outcome is TestOutcome.PASSED:
            kind = "broken"
        elif old is not None and old.outcome.bad:
            # It failed before. If the task is about it, it has to pass now.
            lacks = lacks_environment(result)
            about = strict or (names.name(test) and not lacks)
            kind = "named" if about else "old" if lacks or alike(result.message, old.message) else "otherwise"
        elif without is not None and _lacks_alike(result, without.result(test)):
            kind = "unable"
        elif old is None and not is_touched and (before.stopped or not before.reported):
            kind = "old"  # its earlier result is not known
        else:
            kind = "own_failing" if is_touched or old is None else "broken"
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


def alike(one: str, other: str) -> bool:
    """Whether two messages are of the same fault: the same first word, and most words in common.

    Numbers are ignored; names of temporary files and the order in sets may differ between any two runs.
    """
    first, second = (_WORDS.findall(_NUMBERS.sub("0", message)) for message in (one, other))
    if first[:1] != second[:1]:
        return False
    together = len({*first, *second})
    return not together or len({*first} & {*second}) >= _ALIKE_SHARE * together


def lacks_environment(result: TestResult) -> bool:
    """Whether a test failed because its environment lacks something: a network, a service, a package."""
    return bool(_ENVIRONMENT.search(_text(result)))


def _text(result: TestResult) -> str:
    return f"{result.message}\n{result.traceback}"


def missing_names(result: TestResult) -> list[str]:
    """The names that a failing test reports as missing."""
    names = (next(filter(None, match.groups())) for match in _MISSING.finditer(_text(result)))
    return [_WORDS.findall(name)[-1] for name in names if _WORDS.search(name)]


def asks_otherwise(result: TestResult, called: Collection[str]) -> bool:
    """Whether a test calls something in `called`, the words of its file, with arguments that it does not take."""
    message = _text(result)
    if _ARITY.search(message):
        return True
    names = (next(filter(None, match.groups())) for match in _SIGNATURE.finditer(message))
    return any(word in called for name in names for word in _WORDS.findall(name))


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
            earlier = self._functions.get(function)
            if earlier is None or (result.outcome.bad and not earlier.outcome.bad):
                self._functions[function] = result

    def result(self, test: str) -> TestResult | None:
        """How a test ended; the result of a file that cannot be collected counts for its tests, and theirs for it."""
        own = self._results.get(test) or self._functions.get(function_of(test))
        if own is not None:
            return own
        return self._results.get(test.partition("::")[0]) if "::" in test else self._files.get(test)

    def failed(self, test: str) -> bool:
        result = self._results.get(test)
        if result is None:
            # Another parameter of the same function proves nothing; a file that could not be collected does.
            result = self._results.get(test.partition("::")[0]) if "::" in test else None
        return result is not None and result.outcome.bad


def _lacks_alike(now: TestResult, without: TestResult | None) -> bool:
    """Whether a test lacks the same in its environment with and without the change."""
    return (
        without is not None and without.outcome.bad and lacks_environment(now) and alike(now.message, without.message)
    )


def _ends_badly(after: TestRun, before: TestRun) -> bool:
    """Whether the run newly fails although no test does: because of a hook, a limit, a crash."""
    if before.exit_code != 0 or before.stopped or after.exit_code == 0 or after.failing or after.unnamed.failed:
        return False
    if after.stopped and after.exit_code is None:
        return False  # it timed out
    return bool(after.reported or before.reported or not before.framework)


def passes(run: TestRun, test: str) -> bool:
    """Whether a test passed; if the runner names only failing tests, an unnamed test passed where others did."""
    if test in run.results:
        return run.results[test].outcome is TestOutcome.PASSED
    return run.unnamed.passed > 0 and not run.stopped


def result_of(run: TestRun, test: str) -> TestResult | None:
    """How a test ended, or the file that it could not be collected from; None where neither has a result."""
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
        return ()  # only complete runs can be compared
    run = {function_of(test) for test in after.results}
    uncollected = {test for test in after.failing if "::" not in test}
    vanished: dict[str, None] = {}
    for test in before.passing:
        function = function_of(test)
        if function in run or touched.has(test) or test.partition("::")[0] in uncollected:
            continue
        vanished[function] = None
    if after.unnamed.passed < before.unnamed.passed and not touched.files and not vanished and not after.failing:
        vanished[f"{before.unnamed.passed - after.unnamed.passed} tests that are only counted"] = None
    return tuple(vanished)


def _once(*lists: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(test for tests in lists for test in tests))


def counts(run: TestRun) -> str:
    """The numbers of a run: `308 passed, 3 failed, 1 cannot run`."""
    summary = run.summary
    parts: Mapping[str, int] = {
        "passed": summary.passed,
        "failed": summary.failed,
        "cannot run": summary.errors,
        "skipped": summary.skipped,
    }
    return ", ".join(f"{number} {outcome}" for outcome, number in parts.items() if number) or "no test ran"


def conclusive(again: TestRun, first: TestRun) -> bool:
    """Whether a test that is not among the failures of a repeated run has passed."""
    if not again.ran or (again.stopped and again.exit_code is None) or again.unnamed.failed:
        return False
    # Some runners change names when only a part is run: a failure with an unknown name may be any test.
    return all(test in first.results for test in again.failing)


def fails(run: TestRun, test: str) -> bool:
    """Whether a test failed in a run."""
    result = result_of(run, test)
    return result is not None and result.outcome.bad


_MAX_LISTED = 20
_MAX_NAMES = 3


def message_of(after: TestRun, compared: Comparison, flaky: Collection[str], *, failed_check: bool) -> str:
    sentences: list[str] = []
    if compared.broken:
        sentences.append(f"{_tests(compared.broken)} with the change and not without: {first_names(compared.broken)}")
    if compared.own_failing:
        sentences.append(
            f"{_tests(compared.own_failing)} that the change itself brings: {first_names(compared.own_failing)}"
        )
    if compared.named:
        sentences.append(f"{_tests(compared.named)} that the task is about: {first_names(compared.named)}")
    if compared.otherwise:
        otherwise = first_names(compared.otherwise)
        sentences.append(f"{_tests(compared.otherwise)} in another way than without the change: {otherwise}")
    if compared.vanished:
        sentences.append(f"no longer run: {first_names(compared.vanished)}")
    if failed_check and not sentences:
        sentences.append(after.stopped or f"exit code {after.exit_code}")
    if not sentences:
        sentences.append(_shown_text(after, compared))
    if compared.old:
        sentences.append(f"{len(compared.old)} failed before and fail{'s' if len(compared.old) == 1 else ''} now")
    if compared.unable:
        sentences.append(f"{len(compared.unable)} of its own cannot run here: {first_names(compared.unable)}")
    if flaky:
        sentences.append(f"{len(flaky)} flaky")
    return "; ".join(sentences)


def _shown_text(after: TestRun, compared: Comparison) -> str:
    """What a run without a fault shows."""
    if compared.by_own_rules and not compared.shown:
        tests = "1 test passes" if len(compared.by_own_rules) == 1 else f"{len(compared.by_own_rules)} tests pass"
        named = first_names(compared.by_own_rules)
        return f"{after.summary.passed} passed, but {tests} only as the change itself has tests run: {named}"
    own = f" ({text})" if (text := own_summary(compared)) else ""
    if compared.shown:
        single = len(compared.shown) == 1
        tests = "1 test fails" if single else f"{len(compared.shown)} tests fail"
        passes = f"pass{'es' if single else ''} with it: {first_names(compared.shown)}"
        return f"{tests} without the change and {passes}{own}; {after.summary.passed} passed"
    nothing = "no test fails without the change" if not compared.own else "its tests pass without the change too"
    return f"{after.summary.passed} passed, {nothing}{own}"


def own_summary(compared: Comparison) -> str:
    if not compared.own:
        return ""
    count, shown = len(compared.own), len(compared.own_shown)
    fail = "fails" if shown == 1 else "fail"
    return f"{count} new or changed test{'' if count == 1 else 's'}, {shown} {fail} without the change"


def notes_of(after: TestRun, before: TestRun | None) -> list[str]:
    notes = [*after.notes]
    if after.stopped:
        notes.append(f"with the change: {after.stopped}")
    if before is not None and before.stopped:
        notes.append(f"untouched commit: {before.stopped}")
    for run, where in ((after, "with the change"), (before, "untouched commit")):
        if run is not None and (run.hung or run.crashed):
            notes += [f"{where}: {test} hangs" for test in run.hung[:_MAX_NAMES]]
            notes += [f"{where}: {test} crashes the test run" for test in run.crashed[:_MAX_NAMES]]
    return notes


def _tests(tests: Collection[str]) -> str:
    return f"{len(tests)} tests fail" if len(tests) > 1 else "1 test fails"


def listed(tests: Collection[str]) -> str:
    named = list(tests)[:_MAX_LISTED]
    return "\n".join((*named, *([f"and {len(tests) - _MAX_LISTED} more"] if len(tests) > _MAX_LISTED else [])))
