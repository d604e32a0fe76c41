"""The stage of a chaos run: NATS, a model server, a witness, two orchestrators, and Ray, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from labs.chaos.model import NOTES
from labs.chaos.ray_node import HOST
from labs.chaos.witness import Witness
from labs.children import Child, free_port
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing.repositories import make_repository
from tests.processes import kill

LEASE_SECONDS = 4
CHECKPOINT_SECONDS = 1
READY_SECONDS = 120.0
_SUPERVISE_SECONDS = 1.0
_TAIL = 300
RAY_VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_DEDUP_LOGS": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Where an orchestrator answers."""

    address: str
    token: str


class Replica(Child):
    """An orchestrator with a home, a port and a Ray of its own, or on a cluster."""

    def __init__(self, number: int, directory: Path, variables: dict[str, str]) -> None:
        self.home = directory / f"home-{number}"
        self.address = f"127.0.0.1:{free_port()}"
        self.context = f"127.0.0.1:{free_port()}"
        variables = {
            **variables,
            "FLEET_HOME": str(self.home),
            "FLEET_LISTEN": self.address,
            "FLEET_CONTEXT_LISTEN": self.context,
        }
        super().__init__(f"orchestrator-{number}", ("-m", "services.orchestrator.main"), variables, directory)

    @property
    def card(self) -> Card:
        return Card(address=self.address, token=(self.home / "token").read_text().strip())

    @property
    def ready(self) -> bool:
        """Whether this very process serves; a killed one leaves its card behind."""
        try:
            return self.running and json.loads((self.home / "fleet.json").read_text())["pid"] == self.pid
        except (FileNotFoundError, ValueError):
            return False

    async def serving(self) -> None:
        """Wait until it serves or is killed. Raises AssertionError with the end of its log where it never does."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not self.ready and not self.killed:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{self.name} does not serve:\n{self.said()}") from None

    @property
    def workspaces(self) -> list[Path]:
        """Clones that are there."""
        return [path for path in (self.home / "workspaces").glob("*/*") if path.is_dir()]


@dataclass(kw_only=True)
class Stage:
    """What plays in a run. Made by `open_stage`."""

    directory: Path
    repository: Path
    witness: Witness
    nats: EmbeddedNats
    nats_url: str
    nats_token: str
    model: Child
    replicas: list[Replica]
    nodes: list[Child] = field(default_factory=list[Child])
    restarted: list[str] = field(default_factory=list[str])
    """The last output line of each orchestrator that ended by itself and was started again."""
    _cluster: str = ""
    _ray: dict[str, str] = field(default_factory=dict[str, str])
    _made: int = 0

    async def kill_nats(self) -> int:
        """kill -9; its process id."""
        pid = self.nats.address.pid
        os.kill(pid, 9)
        await self.nats.wait()
        await self.nats.__aexit__(None, None, None)
        return pid

    async def start_nats(self) -> None:
        """A server on the same directory and port."""
        port = int(self.nats_url.rpartition(":")[2])
        self.nats = EmbeddedNats(self.directory / "nats", port=port)
        await self.nats.__aenter__()
        assert self.nats.address.url == self.nats_url

    async def start_replicas(self) -> None:
        for replica in self.replicas:
            await replica.start()
        for replica in self.replicas:
            await replica.serving()

    async def supervise(self) -> None:
        """Start an orchestrator again that has ended by itself, as one that meets no NATS at its start does."""
        while True:
            for replica in self.replicas:
                if not replica.running and not replica.killed:
                    self.restarted.append(replica.said().strip().splitlines()[-1][:_TAIL])
                    await replica.start()
            await asyncio.sleep(_SUPERVISE_SECONDS)

    async def stop_replicas(self) -> None:
        await asyncio.gather(*(replica.stop() for replica in self.replicas))

    async def start_cluster(self, nodes: int) -> None:
        """A Ray cluster of so many nodes; orchestrators that start from now on use it."""
        self._ray = {**RAY_VARIABLES, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        port = free_port()
        self._cluster = f"{HOST}:{port}"
        await self._start_node("--port", str(port))
        for _ in range(nodes - 1):
            await self.add_node()
        for replica in self.replicas:
            replica.set({**self._ray, "FLEET_RAY_ADDRESS": self._cluster})

    async def add_node(self) -> Child:
        """One more node of the cluster."""
        return await self._start_node("--address", self._cluster)

    async def kill_node(self, node: Child) -> int:
        """kill -9 of everything that runs on a node; how many processes that was."""
        below = node.descendants()
        self.nodes.remove(node)
        await node.kill()
        return 1 + sum([kill(process) for process in below])

    async def stop_cluster(self) -> None:
        """End what is left of the cluster, its head last."""
        for node in reversed(self.nodes):
            await node.stop()
        self.nodes.clear()

    async def _start_node(self, *arguments: str) -> Child:
        self._made += 1
        name = f"node-{self._made}"
        arguments = ("-m", "labs.chaos.ray_node", "--directory", str(self.directory / name), *arguments)
        node = Child(name, arguments, self._ray, self.directory)
        await node.start()
        await said(node, HOST)
        self.nodes.append(node)
        return node


async def said(child: Child, word: str) -> None:
    """Wait until a program has printed a word. Raises AssertionError where it ends before that, or never does."""
    async with asyncio.timeout(READY_SECONDS):
        while word not in child.said():
            assert child.running, f"{child.name} ended:\n{child.said()}"
            await asyncio.sleep(0.05)


@asynccontextmanager
async def open_stage(directory: Path, *, latency: float) -> AsyncGenerator[Stage]:
    """NATS, model and witness run; two orchestrators are there to be started. Whatever runs at the end is ended."""
    async with AsyncExitStack() as stack:
        witness = await stack.enter_async_context(Witness())
        nats = EmbeddedNats(directory / "nats")
        await nats.__aenter__()
        # Hosts of agents have logins of their own, as with `fleet up`.
        await nats.admit("default")
        port = free_port()
        model = Child(
            "model", ("-m", "labs.chaos.model", "--port", str(port), "--latency", str(latency)), {}, directory
        )
        variables = {
            "FLEET_NATS_URL": nats.address.url,
            "FLEET_NATS_TOKEN": nats.address.token,
            "FLEET_NATS_ISSUER_FILE": str(nats.issuer_file),
            "FLEET_MODEL_URL": f"http://127.0.0.1:{port}/v1",
            "FLEET_MODEL": "scripted",
            "FLEET_LEASE_SECONDS": str(LEASE_SECONDS),
            "FLEET_CHECKPOINT_SECONDS": str(CHECKPOINT_SECONDS),
            # Several hosts each, so that a host that is killed does not take all agents along.
            "FLEET_AGENTS_PER_ACTOR": "6",
            "FLEET_MAX_AGENTS": "18",
            "FLEET_MAX_EXECUTIONS": "8",
            # Memories are found by their words: a model for their meaning would take the time of two cores.
            "FLEET_EMBEDDINGS": "none",
            "FLEET_TOOL_HOSTS": witness.host,
            "FLEET_TOOL_PRIVATE_HOSTS": witness.host,
        }
        stage = Stage(
            directory=directory,
            repository=make_repository(directory / "repository", {NOTES: "Notes\n", "README.md": "A repository.\n"}),
            witness=witness,
            nats=nats,
            nats_url=nats.address.url,
            nats_token=nats.address.token,
            model=model,
            replicas=[Replica(number, directory, variables) for number in (1, 2)],
        )
        await model.start()
        await said(model, "http://")
        try:
            yield stage
        finally:
            for child in (*stage.replicas, model):
                await child.kill()
            for node in (*stage.nodes,):
                await stage.kill_node(node)
            await stage.nats.__aexit__(None, None, None)
