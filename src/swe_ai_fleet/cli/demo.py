"""The demonstration: three agents solve a task in a small repository; evidence picks the winner; all is audited.

The repository has a small module with a fault, and tests that show it. `python -m swe_ai_fleet.cli.demo` needs
nothing running. `MODEL_URL` (and `MODEL`) name a real model server; without one the replies are scripted, but
everything else (NATS, Ray, gRPC, git, sandbox, tests, checks) is real.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import typer
from nats.aio.msg import Msg

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient, connect
from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.executions import audit_table
from swe_ai_fleet.cli.live import WatchedProgress, view
from swe_ai_fleet.cli.outcome import candidate_diff, print_outcome
from swe_ai_fleet.cli.place import started_fleet
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen, interrupts
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import is_list, is_object
from swe_ai_fleet.settings import Settings, without_login
from swe_ai_fleet.testing import Script, ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from swe_ai_fleet.watching.events import verify_events
from swe_ai_fleet.watching.text import one_line

TASK = (
    "parse_duration accepts text that is no duration.\n\n"
    'For "90", "1h30", "5x" or an empty text it gives some number instead of raising ValueError. A duration is one or '
    "more whole numbers, each with its unit (d, h, m, s), the units in descending order and each at most once; nothing "
    "else may pass. The tests in tests/test_durations.py say what must hold, and some of them fail."
)

FILES = {
    "README.md": "# durations\n\nReads and writes durations such as `1h30m`. `python3 -m pytest` runs the tests.\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\n",
    "ruff.toml": "line-length = 120\n",
    "durations.py": '''\
"""Durations as people write them: "90s", "1h30m", "2d"."""

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text):
    """The seconds in a duration. Raises ValueError for text that is none."""
    seconds = 0
    digits = ""
    for character in text:
        if character.isdigit():
            digits += character
        elif character in UNITS:
            seconds += int(digits) * UNITS[character]
            digits = ""
    return seconds


def format_duration(seconds):
    """The shortest way to write a number of seconds: 5400 is "1h30m"."""
    parts = []
    for unit, length in UNITS.items():
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
''',
    "tests/test_durations.py": """\
import pytest

from durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("1d1h1m1s", 90061), ("0s", 0)],
)
def test_reads_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("seconds", [0, 1, 90, 5400, 90061])
def test_reads_what_it_writes(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "h", "90", "1h30", "5x", "1.5h", "-5m", "5 m", "30m1h", "1h1h"])
def test_refuses_what_is_no_duration(text):
    with pytest.raises(ValueError):
        parse_duration(text)
""",
}
TASK_ID = "demo"
AGENTS = 3
_RESULT_SECONDS = 15.0
_SHOWN = 120


_REPLIES = Path(__file__).with_name("demo_replies.json")


class Faults(list[str]):
    """The failed expectations."""

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.append(otherwise)


async def demonstrate(screen: Screen, *, model_url: str, model: str) -> Exit:
    """Run the demonstration and clean up; NOT_ACCEPTED if an expectation failed.

    Args:
        model_url: An OpenAI-compatible server; empty for the scripted one.
        model: Its model; empty for the first it lists.
    """
    faults = Faults()
    with (
        interrupts() as signals,
        tempfile.TemporaryDirectory(prefix="fleet-demo-", ignore_cleanup_errors=True) as directory,
    ):
        repository = make_repository(Path(directory) / "durations", FILES, message="Read and write durations")
        base = git(repository, "rev-parse", "HEAD")
        _heading(screen, "A sample repository with failing tests")
        screen.line(git(repository, "log", "--oneline", "--stat", "-1"))
        screen.line(f"\nThe task for {AGENTS} agents: {one_line(TASK)}")
        async with AsyncExitStack() as stack:
            if not model_url:
                model_url = (await stack.enter_async_context(ScriptedModelServer(Script.from_json(_REPLIES)))).url
                screen.line(
                    "\nThe model's replies are SCRIPTED (recorded in cli/demo_replies.json); agents, tools, sandbox, "
                    "tests, checks, gRPC, Ray and NATS are real. MODEL_URL=... takes a real model.",
                    style="bold yellow",
                )
            settings = Settings(
                home=Path(directory) / "home",
                model_url=model_url,
                model=model,
                listen="127.0.0.1:0",
                nats_url="",
                ray_address="",
                repository_roots=directory,
                log_level="error",
            )
            screen.note("\nstarting NATS, Ray and the orchestrator ...")
            running = await stack.enter_async_context(started_fleet(settings, screen))
            signals.arm()
            screen.note(f"gRPC at {running.address}, NATS at {without_login(running.nats_url)}")
            client = await stack.enter_async_context(connect(running.address, running.token, tls=running.tls))
            results = await stack.enter_async_context(_results(running.nats_url, running.nats_token))
            _heading(screen, "The agents at work")
            final, state = await _orchestrate(screen, client, repository)
            _heading(screen, "What the evidence says")
            print_outcome(screen, state, await candidate_diff(client, state, state.winner_id))
            _check_delivery(screen, faults, repository, base, final)
            await _check_result(screen, faults, results, final)
            await _check_audit(screen, faults, client, final)
    _heading(screen, "Cleaned up; now on a repository of yours")
    screen.line('  FLEET_MODEL_URL=http://127.0.0.1:8000/v1 fleet run --local --repo . "what to do"')
    for fault in faults:
        screen.note(f"FAILED: {fault}", style="bold red")
    return Exit.NOT_ACCEPTED if faults else Exit.ACCEPTED


async def _orchestrate(
    screen: Screen, client: FleetClient, repository: Path
) -> tuple[pb.OrchestrateResponse, ExecutionState]:
    """Orchestrate over gRPC and show the events; returns the final answer, and the state after all events."""
    request = pb.OrchestrateRequest(
        task_id=TASK_ID,
        task_description=TASK,
        role="DEV",
        repo=pb.RepoRef(path=str(repository)),
        options=pb.OrchestratorOptions(num_agents=AGENTS),
        constraints=pb.TaskConstraints(timeout_seconds=600),
    )
    progress, final = WatchedProgress(), None
    with view(screen, progress) as show:
        async for update in client.orchestrate(request):
            if update.HasField("event"):
                show(update.event)
            if update.HasField("final"):
                final = update.final
    if final is None or progress.state is None:
        raise CommandFault("the stream ended without a final answer", exit_code=Exit.NOT_ACCEPTED)
    return final, progress.state


def _check_delivery(screen: Screen, faults: Faults, repository: Path, base: str, final: pb.OrchestrateResponse) -> None:
    """Check that the winner is on its branch, and nothing else in the repository has changed."""
    faults.expect(
        final.status == pb.DELIBERATION_STATUS_COMPLETED,
        f"the execution ended as {pb.DeliberationStatus.Name(final.status)}",
    )
    faults.expect(
        git(repository, "rev-parse", "HEAD") == base and not git(repository, "status", "--porcelain"),
        "the repository's working tree or current branch was touched",
    )
    if not final.commit_sha:
        return
    _heading(screen, f"git log {final.branch} (your working tree is untouched, still on main)")
    screen.line(git(repository, "log", "--stat", "-1", final.branch, "--"))
    commits = git(repository, "rev-parse", f"refs/heads/{final.branch}", f"refs/heads/{final.branch}^").split()
    faults.expect(commits == [final.commit_sha, base], f"branch {final.branch} is not the winner's commit on {base}")


async def _check_result(
    screen: Screen, faults: Faults, results: asyncio.Queue[Msg], final: pb.OrchestrateResponse
) -> None:
    _heading(screen, "What a NATS subscriber received")
    try:
        async with asyncio.timeout(_RESULT_SECONDS):
            message = await results.get()
    except TimeoutError:
        faults.expect(False, f"nothing was published on agent.results.{TASK_ID}")
        return
    payload: dict[str, object] = json.loads(message.data)
    screen.line(f"{message.subject} ({len(message.data):,} bytes)")
    screen.line(json.dumps({key: _shortened(value) for key, value in payload.items()}, indent=2))
    faults.expect(
        message.subject == f"agent.results.{TASK_ID}" and payload.get("execution_id") == final.execution_id,
        "the result is of another execution",
    )
    faults.expect(
        payload.get("success") is (final.status == pb.DELIBERATION_STATUS_COMPLETED),
        f"gRPC and NATS disagree: {payload.get('status')}",
    )


async def _check_audit(screen: Screen, faults: Faults, client: FleetClient, final: pb.OrchestrateResponse) -> None:
    _heading(screen, f"fleet audit verify {final.execution_id}")
    verdicts = verify_events([event async for event in client.events(final.execution_id)])
    screen.out.print(audit_table(verdicts))
    whole = [verdict for verdict in verdicts if verdict.intact and verdict.entries and verdict.recorded_head]
    faults.expect(len(whole) == len(verdicts) == AGENTS, "an audit chain is missing or broken")


@asynccontextmanager
async def _results(url: str, token: str) -> AsyncGenerator[asyncio.Queue[Msg], None]:
    """The messages published about the demonstration's task, received by an ordinary NATS subscriber."""
    queue: asyncio.Queue[Msg] = asyncio.Queue()
    connection = await nats.connect(url, token=token)
    try:
        await connection.subscribe(f"agent.results.{TASK_ID}", cb=queue.put)
        await connection.flush()
        yield queue
    finally:
        await connection.close()


def _shortened(value: object) -> object:
    if is_list(value):
        entries = len(value)
        return f"[{entries} entries]" if entries else []
    if is_object(value):
        return {key: _shortened(inner) for key, inner in value.items()}
    return one_line(value, _SHOWN) if isinstance(value, str) else value


def _heading(screen: Screen, text: str) -> None:
    screen.line(f"\n== {text}", style="bold cyan")


def main() -> None:
    model_url, model = os.environ.get("MODEL_URL", ""), os.environ.get("MODEL", "")
    run_command(lambda screen, _: demonstrate(screen, model_url=model_url, model=model), json=False)


if __name__ == "__main__":
    try:
        main()
    except typer.Exit as leaving:
        raise SystemExit(leaving.exit_code) from None
