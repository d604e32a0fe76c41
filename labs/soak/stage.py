"""The stage of a soak: a fleet with everything in it, a model server, a repository, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from labs.chaos.stage import Replica, said
from labs.children import Child, descendants, free_port
from labs.soak.model import NOTES
from services.access.tokens import token_digest
from swe_ai_fleet.testing.repositories import make_repository
from tests.processes import kill, marked, title

TENANTS = ("default", "blue")
LEASE_SECONDS = 4
STOP_SECONDS = 25.0
_GONE_SECONDS = 15.0
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCard:
    """Where the fleet answers, and with what."""

    address: str
    token: str
    http: str
    nats_url: str
    nats_token: str


@dataclass(kw_only=True)
class Soaked:
    """What runs. Made by `open_soaked`.

    `mark` is in the environment of every process of the run, `tokens` (of who asks and of who approves) and
    `repositories` are each tenant's, `metrics` is where the fleet tells figures. `slow` says so where the fleet took
    too long to stop, and `left` names what outlived it.
    """

    directory: Path
    repositories: Mapping[str, Path]
    fleet: Replica
    model: Child
    mark: str
    tokens: Mapping[str, tuple[str, str]]
    metrics: str
    slow: str = ""
    left: list[str] = field(default_factory=list[str])

    def card(self) -> FullCard:
        """Raises FileNotFoundError while no fleet serves."""
        found = json.loads((self.fleet.home / "fleet.json").read_text())
        return FullCard(**{name: found[name] for name in ("address", "token", "http", "nats_url", "nats_token")})


@asynccontextmanager
async def open_soaked(directory: Path, *, mark: str, kept_seconds: float, latency: float) -> AsyncGenerator[Soaked]:
    """A fleet that serves, with the retention of the run. Whatever runs at the end is ended."""
    port = free_port()
    model = Child("model", ("-m", "labs.soak.model", "--port", str(port), "--latency", str(latency)), {}, directory)
    http = free_port()
    variables = {
        "FLEET_MODEL_URL": f"http://127.0.0.1:{port}/v1",
        "FLEET_MODEL": "scripted",
        "FLEET_LEASE_SECONDS": str(LEASE_SECONDS),
        "FLEET_CHECKPOINT_SECONDS": "1",
        "FLEET_AGENTS_PER_ACTOR": "6",
        "FLEET_MAX_AGENTS": "12",
        "FLEET_MAX_EXECUTIONS": "6",
        "FLEET_EMBEDDINGS": "none",
        "FLEET_REPOSITORY_ROOTS": str(directory / "repositories" / "{tenant}"),
        "FLEET_ACCESS_FILE": str(directory / "access.toml"),
        "FLEET_METRICS_LISTEN": f"127.0.0.1:{(metrics := free_port())}",
        "FLEET_HTTP_LISTEN": f"127.0.0.1:{http}",
        "FLEET_HTTP_REQUESTS_PER_MINUTE": "100000",
        "FLEET_EVENT_DAYS": str(kept_seconds / 86_400),
        "FLEET_LOG_LEVEL": "warning",
        "GODEBUG": "gctrace=1",  # nats-server tells in its log how much of its heap is in use
    }
    files = {NOTES: "Notes\n", "README.md": "A repository.\n"}
    tokens = {tenant: (secrets.token_hex(32), secrets.token_hex(32)) for tenant in TENANTS}
    entries = (
        f'[[tokens]]\nname = "{tenant}-{number}"\ntenant = "{tenant}"\nroles = ["admin"]\n'
        f'sha256 = "{token_digest(token)}"\n'
        for tenant, both in tokens.items()
        for number, token in enumerate(both)
    )
    (directory / "access.toml").write_text("".join(f"[tenants.{tenant}]\n" for tenant in TENANTS) + "".join(entries))
    soaked = Soaked(
        directory=directory,
        tokens=tokens,
        metrics=f"127.0.0.1:{metrics}",
        repositories={tenant: make_repository(directory / "repositories" / tenant, files) for tenant in TENANTS},
        fleet=Replica(1, directory, variables),
        model=model,
        mark=mark,
    )
    try:
        await model.start()
        await said(model, "http://")
        await soaked.fleet.start()
        await soaked.fleet.serving()
        yield soaked
    finally:
        below = soaked.fleet.descendants()
        try:
            await _stopped(soaked)
        finally:
            for process in (*below, *marked(mark, directory)):
                kill(process)
            await model.kill()


async def _stopped(soaked: Soaked) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await soaked.fleet.stop()
    except TimeoutError:
        soaked.slow = f"the fleet did not stop within {STOP_SECONDS:g} s"
        return
    until = time.monotonic() + _GONE_SECONDS
    while (left := fleet_processes(soaked)) and time.monotonic() < until:
        await asyncio.sleep(_LOOK_SECONDS)
    soaked.left = [name for pid in left if (name := _title(pid))]


def _title(pid: int) -> str:
    try:
        return title(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return ""


def fleet_processes(soaked: Soaked) -> set[int]:
    """The ids of everything that belongs to the fleet, what a killed orchestrator has left behind too."""
    others = {soaked.model.pid} if soaked.model.running else set[int]()
    found = {process.pid for process in marked(soaked.mark, soaked.directory)} | {
        process.pid for process in descendants(soaked.fleet.pid)
    }
    if soaked.fleet.running:
        found.add(soaked.fleet.pid)
    return found - others
