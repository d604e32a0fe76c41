"""One supervised run of tests in a workspace."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import jail, programs
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.tests.events import read_events
from swe_ai_fleet.tools.tests.lines import uncoloured
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.plan import Plan
from swe_ai_fleet.tools.tests.runners.premises import leave, leaving_nothing, probe, written

TIME_IS_UP = 124
_SPARE_SECONDS = 15.0
"""What the supervisor gets beyond the limit of the whole run, to end what runs and to say so."""
_MAX_LIMITS = 500
_MOST_FALLBACKS = 4
_OUTPUT_CHARS = 64_000
_INSIDE = "tools/tests/inside"


def digest_of(directory: Path) -> str:
    """SHA-256 of the programs below a directory: the same where they are."""
    found = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.suffix in (".py", ".cjs", ".mjs")):
        found.update(f"{path.relative_to(directory)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


@cache
def own_digest() -> str:
    """Of what runs tests and reads their reports: another version of it may come to something else."""
    return digest_of(Path(__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestLimits:
    """How long tests may take, in seconds.

    `whole` is the limit of a run, `test` of each test, `start` until the first test begins; `known` holds longer limits
    of single tests by id.
    """

    __test__ = False

    whole: float = 600.0
    test: float = 60.0
    start: float = 240.0
    known: Mapping[str, float] = field(default_factory=dict[str, float])


async def run_tests(
    workspace: Workspace, plan: Plan, limits: TestLimits, *, inventory: Inventory | None = None
) -> TestRun:
    """Run tests to their end, to the limit of the whole, or as far as hangs and crashes allow.

    What is known by then is in the result, however the run ended. Raises ToolFailure where the program is missing.
    """
    scratch, there = await probe(workspace, plan.argv[0])
    if not there:
        raise ToolFailure(plan.absent)
    first = run = await _supervised(workspace, plan, limits, scratch, inventory)
    for _ in range(_MOST_FALLBACKS):
        others = (fallback.instead(plan, run) for fallback in plan.fallbacks)
        if run.reported or (other := next((other for other in others if other), None)) is None:
            break
        plan = other
        run = await _supervised(workspace, plan, limits, scratch, inventory)
    return run if run.reported else first


def inside(workspace: Workspace) -> str:
    """The directory of the programs and plug-ins for the sandbox, as commands of this workspace see it."""
    place = programs.code()
    return f"{place.inside if workspace.mount == jail.WORKSPACE else place.outside}/{_INSIDE}"


async def _supervised(
    workspace: Workspace, plan: Plan, limits: TestLimits, scratch: str, inventory: Inventory | None
) -> TestRun:
    events, key = f"{scratch}/fleet-{secrets.token_hex(8)}.events", secrets.token_hex(32)
    longest = sorted(limits.known, key=lambda name: -limits.known[name])[:_MAX_LIMITS]
    spec = {
        "argv": plan.argv,
        "before": plan.before,
        "stream": plan.stream,
        "events": events,
        "key": f"{events}.key",
        # Automation has colours, and tests of colours expect them.
        "unset": ["NO_COLOR"] if "NO_COLOR" not in {**workspace.environment.variables, **plan.variables} else [],
        "shown_key": plan.framework not in ("pytest", "unittest"),
        "seconds": limits.whole,
        # Nothing is said of tests while they are compiled, or of single tests at all.
        "start_seconds": _start_seconds(plan, limits),
        "test_seconds": limits.test,
        "limits": {name: limits.known[name] for name in longest},
    }
    program = f"{inside(workspace)}/supervise.py"
    command = Command(
        argv=(jail.python(), "-I", "-S", "-B", program, json.dumps(spec)),
        cwd=plan.cwd,
        variables=plan.variables,
        timeout_seconds=limits.whole + _SPARE_SECONDS,
        output_limit=plan.output_limit,
        merge_stderr=True,
    )
    await leave(workspace, f"{events}.key", key)
    with leaving_nothing(inventory, plan.transient):
        result = await workspace.run(command)
    data = await written(workspace, events)
    return await asyncio.to_thread(_run_of, plan, limits, result, data or b"", key)


def _start_seconds(plan: Plan, limits: TestLimits) -> float:
    silent = plan.stream == "output" or plan.framework in ("go", "cargo")
    return limits.whole if silent else min(limits.start, limits.whole)


def _run_of(plan: Plan, limits: TestLimits, result: CommandResult, data: bytes, key: str) -> TestRun:
    said = result.stdout.text()
    events = read_events(data, key)
    run = TestRun(results=events.results)
    if not events.results:
        run = plan.read_output(said) or TestRun()
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
        output=_shortened(uncoloured(said)),
    )


def _shortened(text: str) -> str:
    if len(text) <= _OUTPUT_CHARS:
        return text
    half = _OUTPUT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
