"""What several suites share: one NATS server, one scripted model, one running fleet for the whole run."""

from __future__ import annotations

import gc
import os
import re
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

# Processes are started beside gRPC's threads here, and its handlers of a fork have crashed some before they began.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from services.orchestrator.main import RunningFleet, open_fleet
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.environments import home_at, shared_tools
from tests.fleet_client import Client, connected
from tests.fleet_command import Shell, warm_fleet
from tests.nats_logs import connected as connected_log
from tests.scripts import HELLO_FILES, SCRIPT
from tests.search_server import SearchServer
from tests.trace_collector import TraceCollector


def pytest_configure() -> None:
    """What holds for every test.

    Tracebacks are as processes of the fleet log them: structlog's own take seconds of the loop that is being tested.
    How long an example takes depends on what else the machine does, so that is no fault. Each run has other examples.
    """
    # Workers have them from the process that starts them.
    shared_tools()
    # The default port may be another run's, which is a warning.
    os.environ.setdefault("FLEET_METRICS_LISTEN", "127.0.0.1:0")
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
    hypothesis.settings.register_profile(
        "any-machine", deadline=None, max_examples=50, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any-machine")
    # What is loaded stays: to look through all of it for garbage, again and again, is a tenth of the time.
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on only what tests leave is looked through.

    Before each test a worker tells what counts reruns about it, twice: by Nagle's algorithm the second waits for the
    delayed answer to the first, 40 ms that are most of what half of the tests take.
    """
    gc.freeze()
    gc.enable()
    counting = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if isinstance(counting, socket.socket):
        counting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Suites that start processes come first: what is left at the end is short, so all workers end at about once."""
    items.sort(key=lambda item: item.nodeid.startswith("tests/unit/"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A test that passed only when it ran once more has a race, or what it tests has: why it failed is shown."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"RERUN {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-4000:])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """All files that use the fleet go to one worker: another one would start a second fleet for its share of them."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "fleet" if _uses_the_fleet(config.rootpath / file) else file

    return Scheduling(config, log)


@cache
def _uses_the_fleet(file: Path) -> bool:
    uses = r"\b(?:fleet: FleetUnderTest|shell: Shell)\b|def test_\w+\([^)]*\bclient: Client\b"
    return re.search(uses, file.read_text()) is not None


_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4 * 1024**3


@cache
def _memory() -> str | None:
    """Where files are kept in memory; None where there is little of it, or no program may be started there."""
    if os.environ.get("FLEET_TEST_DISK") or not _MEMORY.is_dir():
        return None
    enough = shutil.disk_usage(_MEMORY).free >= _ENOUGH_BYTES and os.access(_MEMORY, os.W_OK)
    return str(_MEMORY) if enough and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC else None


@cache
def _about_places(file: Path) -> bool:
    """Whether tests are about what a sandbox leaves of the host: Landlock leaves all of that directory."""
    if "attacks" in file.parts:
        return True
    return re.search(r"(?i)landlock|CONFINED|IsolationLevel|dev/shm|statvfs|disk_usage", file.read_text()) is not None


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A test's own directory, in memory where that may be: to make a file there takes a tenth of the time.

    With FLEET_TEST_DISK=1 it is where pytest has it, which keeps what a failed test left.
    """
    memory = None if _about_places(request.path) else _memory()
    if memory is None:
        yield request.getfixturevalue("tmp_path")
        return
    with tempfile.TemporaryDirectory(prefix="fleet-test-", dir=memory, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Logging is a test's own: a command that it runs in this process sets it up for the whole of it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The small one that most tasks are about."""
    return make_repository(tmp_path / "repository", HELLO_FILES)


@pytest.fixture(scope="session")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    """One NATS server for the whole run; use ids of your own on it."""
    async with EmbeddedNats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
async def nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    """A server of one module's own: what others left is no part of what is told there."""
    async with EmbeddedNats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def jetstream(nats_server: EmbeddedNats) -> AsyncIterator[JetStream]:
    """A log on the server of the whole run."""
    async with connected_log(nats_server.address) as log:
        yield log


@pytest.fixture(scope="session")
async def model_server() -> AsyncIterator[ScriptedModelServer]:
    """The scripted model; which conversation a task gets is chosen by a word in its description, see tests.scripts."""
    async with ScriptedModelServer(SCRIPT) as server:
        yield server


@pytest.fixture(scope="session")
async def search_server() -> AsyncIterator[SearchServer]:
    """Where the fleet searches the web."""
    async with SearchServer() as server:
        yield server


@pytest.fixture(scope="session")
async def collector() -> AsyncIterator[TraceCollector]:
    """Where the fleet sends its traces."""
    async with TraceCollector() as collector:
        yield collector


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUnderTest:
    """A fleet that runs in this process, and the settings it was started with."""

    running: RunningFleet
    settings: Settings


@pytest.fixture(scope="session")
async def fleet(
    model_server: ScriptedModelServer,
    search_server: SearchServer,
    collector: TraceCollector,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[FleetUnderTest]:
    """Embedded NATS, a private Ray, the orchestrator and its gRPC server, real all of them; traced and measured."""
    settings = Settings(
        home=home_at(tmp_path_factory.mktemp("fleet")),
        model_url=model_server.url,
        model="scripted",
        model_profiles={"recorded": {"record_tokens": "true"}},
        listen="127.0.0.1:0",
        search_url=search_server.url,
        otlp_endpoint=collector.url,
        metrics_listen="127.0.0.1:0",
        harnesses=_harnesses(tmp_path_factory),
    )
    async with open_fleet(settings) as running:
        yield FleetUnderTest(running=running, settings=settings)


@pytest.fixture
async def client(fleet: FleetUnderTest) -> AsyncIterator[Client]:
    """Somebody who calls the fleet."""
    running = fleet.running
    card = {"address": running.address, "context": running.context, "token": running.token}
    async with connected(card) as client:
        yield client


def _harnesses(directories: pytest.TempPathFactory) -> dict[str, Any]:
    """The small harness of the extension's tests, where the extension is there."""
    if not load_parts("harnesses"):
        return {}
    from tests.extensions.acp import acp_agent

    return {"small": acp_agent.settings("good", acp_agent.install(directories.mktemp("harness")))}


@pytest.fixture(scope="session")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where commands are started from that are many; it loads while the fleet starts."""
    async with warm_fleet(tmp_path_factory.mktemp("w")) as path:
        yield path


@pytest.fixture(scope="session")
def shell(warm: str, fleet: FleetUnderTest, model_server: ScriptedModelServer) -> Shell:
    return Shell(home=fleet.settings.home, model_url=model_server.url, warm=warm)


@pytest.fixture
def elsewhere(tmp_path: Path, model_server: ScriptedModelServer) -> Shell:
    """A home on which no fleet runs, and the program as it is installed."""
    return Shell(home=home_at(tmp_path / "elsewhere"), model_url=model_server.url)
