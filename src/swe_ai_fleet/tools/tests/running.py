"""Runs tests in a workspace under a supervisor, and reads the results from the events of the run.

Each line of the events file is a JSON object, a tab, and its seal (HMAC-SHA256 in hexadecimal), written by the runner's
plug-in or by the supervisor (`inside/`):

    {"e": "start", "id": ID}                                      a test begins
    {"e": "collected", "id": ID}                                  it has no end (a file was collected)
    {"e": "end", "id": ID, "o": OUTCOME, "ms": N, "m": TEXT, "t": TEXT, "k": "hung" | "crashed"}
    {"e": "cut", "id": ID}                                        it was running when the run's time limit was reached
    {"e": "finish", "code": N}                                    the runner reached its end
    {"e": "fault", "m": TEXT}                                     the runner itself failed
    {"e": "stop", "why": "time" | "silent" | "died" | "hung" | "overwritten", "m": TEXT}

Tests can write to the file too, but have no key, and lines without a valid seal are ignored. A test that searches the
runner's own process can still find the key (docs/evidence.md, "What a candidate can still forge").
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.json_values import json_object, string
from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import concealment, jail
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.tests.plan import SuitePlan, probe, read_report, removing_afterwards, write_private
from swe_ai_fleet.tools.tests.reports import bounded, test_result, uncoloured
from swe_ai_fleet.tools.tests.text_reports import recognise

TIME_IS_UP = 124
_SPARE_SECONDS = 15.0
"""The time for the supervisor beyond the limit of the run, to end its processes and report that."""
_MAX_LIMITS = 500
_MOST_FALLBACKS = 4
_OUTPUT_CHARS = 64_000
_INSIDE = "tools/tests/inside"


@cache
def own_digest() -> str:
    """SHA-256 of the code that runs tests and reads their reports: another version may have other results."""
    digest, directory = hashlib.sha256(), Path(__file__).parent
    for path in sorted(path for path in directory.rglob("*") if path.suffix in (".py", ".cjs", ".mjs")):
        digest.update(f"{path.relative_to(directory)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TestLimits:
    """Time limits of tests, in seconds.

    `whole` is the limit of a run, `test` of each test, `start` until the first test begins; `known` has longer limits
    of single tests, by id.
    """

    __test__ = False

    whole: float = 600.0
    test: float = 60.0
    start: float = 240.0
    known: Mapping[str, float] = field(default_factory=dict[str, float])


async def run_tests(workspace: Workspace, plan: SuitePlan, limits: TestLimits) -> TestRun:
    """Run tests to their end, to the time limit of the run, or as far as hangs and crashes allow.

    The result has the tests that have ended, however the run ended. Raises ToolFailure if the program is missing.
    """
    scratch, is_installed = await probe(workspace, plan.argv[0])
    if not is_installed:
        raise ToolFailure(plan.absent)
    first = run = await _supervised(workspace, plan, limits, scratch)
    for _ in range(_MOST_FALLBACKS):
        others = (fallback.instead(plan, run) for fallback in plan.fallbacks)
        if run.reported or (other := next((other for other in others if other), None)) is None:
            break
        plan = other
        run = await _supervised(workspace, plan, limits, scratch)
    return run if run.reported else first


def inside(workspace: Workspace) -> str:
    """The directory of the programs and plug-ins for the sandbox, as commands of this workspace see it."""
    code = concealment.code()
    is_mounted = workspace.environment.image is not None or workspace.mount != str(workspace.root)
    return f"{code.inside if is_mounted else code.outside}/{_INSIDE}"


async def _supervised(workspace: Workspace, plan: SuitePlan, limits: TestLimits, scratch: str) -> TestRun:
    events, key = f"{scratch}/fleet-{secrets.token_hex(8)}.events", secrets.token_hex(32)
    longest = sorted(limits.known, key=lambda name: -limits.known[name])[:_MAX_LIMITS]
    spec = {
        "argv": plan.argv,
        "before": plan.before,
        "stream": plan.stream,
        "events": events,
        "key": f"{events}.key",
        # Automation sets no NO_COLOR, and tests of colours fail with it.
        "unset": ["NO_COLOR"] if "NO_COLOR" not in {**workspace.environment.variables, **plan.variables} else [],
        "shown_key": plan.framework not in ("pytest", "unittest"),
        "seconds": limits.whole,
        # No test is reported while tests are compiled, or at all by some runners.
        "start_seconds": _start_seconds(plan, limits),
        "test_seconds": limits.test,
        "limits": {name: limits.known[name] for name in longest},
    }
    program = f"{inside(workspace)}/supervise.py"
    command = Command(
        argv=(*jail.python(workspace.environment), "-I", "-S", "-B", program, json.dumps(spec)),
        cwd=plan.cwd,
        variables=plan.variables,
        timeout_seconds=limits.whole + _SPARE_SECONDS,
        output_limit=plan.output_limit,
        merge_stderr=True,
    )
    await write_private(workspace, f"{events}.key", key)
    with removing_afterwards(workspace, plan.transient):
        result = await workspace.run(command)
    data = await read_report(workspace, events)
    return await asyncio.to_thread(_run_of, plan, limits, result, data or b"", key)


def _start_seconds(plan: SuitePlan, limits: TestLimits) -> float:
    silent = plan.stream == "output" or plan.framework in ("go", "cargo")
    return limits.whole if silent else min(limits.start, limits.whole)


def _run_of(plan: SuitePlan, limits: TestLimits, result: CommandResult, data: bytes, key: str) -> TestRun:
    output = result.stdout.text()
    events = read_events(data, key)
    run = (plan.stream == "output" and recognise(output)) or TestRun(results=events.results)
    timed_out = result.timed_out or result.exit_code == TIME_IS_UP
    stopped = ""
    if events.stop == "silent":
        stopped = f"no test began within {_start_seconds(plan, limits):g} s"
    elif timed_out:
        stopped = f"the time limit of {limits.whole:g} s was reached"
    elif events.stop:
        stopped = f"the test runner ended early ({events.how or events.stop})"
    elif events.fault:
        stopped = "the test runner failed: " + (events.fault.strip().splitlines() or [""])[-1][:300]
    silent = plan.stream == "output" and not run.reported
    by_exit_code = (f"judged by exit code: {plan.unknown or 'it reports no test'}",) if silent else ()
    return replace(
        run,
        framework="" if silent else plan.framework,
        command=plan.command,
        exit_code=None if timed_out else result.exit_code,
        duration_ms=result.duration_ms,
        stopped=stopped,
        hung=events.hung,
        crashed=events.crashed,
        notes=(*plan.notes, *by_exit_code),
        output=_shortened(uncoloured(output)),
    )


def _shortened(text: str) -> str:
    if len(text) <= _OUTPUT_CHARS:
        return text
    half = _OUTPUT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


MAX_TESTS = 200_000
_MAX_MILLISECONDS = 10**10
_OUTCOMES = {str(outcome): outcome for outcome in TestOutcome}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerEvents:
    """The events of a run. `stop` is why the supervisor gave up, `fault` the runner's failure; both may be empty."""

    results: Mapping[str, TestResult]
    hung: tuple[str, ...] = ()
    crashed: tuple[str, ...] = ()
    stop: str = ""
    how: str = ""
    fault: str = ""


def read_events(data: bytes, key: str) -> RunnerEvents:
    """The results in a file of events; lines that are not sealed with the key are ignored.

    The first end of a test counts, unless a later one is a failure.
    """
    results: dict[str, TestResult] = {}
    killed: dict[str, list[str]] = {"hung": [], "crashed": []}
    stop, how, fault = "", "", ""
    for line in data.split(b"\n"):
        text = line.rpartition(b"\t")[0]
        if not hmac.compare_digest(sealed(text, key), line):
            continue
        event = json_object(text)
        match string(event.get("e")):
            case "end":
                name, outcome = bounded(string(event.get("id"))), _OUTCOMES.get(string(event.get("o")))
                if not name or outcome is None or len(results) >= MAX_TESTS:
                    continue
                if name in results and (results[name].outcome.bad or not outcome.bad):
                    continue
                message, trace = string(event.get("m")), string(event.get("t"))
                results[name] = test_result(outcome, message, trace, _milliseconds(event.get("ms")))
                if (kind := string(event.get("k"))) in killed:
                    killed[kind].append(name)
            case "stop":
                stop, how = string(event.get("why"))[:40], string(event.get("m"))[:100]
            case "fault":
                fault = string(event.get("m"))[-2_400:]
            case _:
                pass
    hung, crashed = map(tuple, killed.values())
    return RunnerEvents(results=results, hung=hung, crashed=crashed, stop=stop, how=how, fault=fault)


def sealed(text: bytes, key: str) -> bytes:
    """An event with its seal: a line without its line end."""
    return text + b"\t" + hmac.digest(key.encode(), text, "sha256").hex().encode()


def _milliseconds(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < _MAX_MILLISECONDS else 0
