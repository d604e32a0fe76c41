"""The whole fleet as containers on a private network: as little of a machine as they need, and nothing more."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

START_SECONDS = 240.0
HOME = "/var/lib/fleet"
REPLIES = Path(__file__).with_name("replies.json")
_HARDENED = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "shm_size": "256m",
    "pids_limit": 4096,
    # As Kubernetes does: a Ray that has not yet missed a killed driver may turn the next one away once.
    "restart_policy": {"Name": "on-failure", "MaximumRetryCount": 5},
}
_RAY = (
    "--port=6379 --ray-client-server-port=10001 --num-cpus=2 --object-store-memory=80000000 --include-dashboard=false"
)


@dataclass(kw_only=True)
class Stack:
    """Running containers by name, and what callers must show."""

    network: str
    context_token: str
    token: str = ""
    containers: dict[str, Any] = field(default_factory=dict)

    def address(self, name: str) -> str:
        """A container's address on the private network, which this host can reach."""
        container = self.containers[name].get_wrapped_container()
        container.reload()
        return str(container.attrs["NetworkSettings"]["Networks"][self.network]["IPAddress"])

    def run(self, name: str, *command: str) -> tuple[int, str]:
        """Exit code and output of a command in a container."""
        answer = self.containers[name].get_wrapped_container().exec_run(list(command))
        return answer.exit_code, answer.output.decode(errors="replace")

    def log(self, name: str) -> str:
        return self.containers[name].get_wrapped_container().logs(tail=40).decode(errors="replace")

    def stop(self, name: str) -> int:
        """Send SIGTERM and wait; the exit code, 137 where it had to be killed."""
        container = self.containers[name].get_wrapped_container()
        container.stop(timeout=60)
        return int(container.wait()["StatusCode"])

    async def answers(self, name: str, port: int) -> None:
        """Wait until a container listens. Raises RuntimeError with its log where it ended."""
        container = self.containers[name].get_wrapped_container()
        async with asyncio.timeout(START_SECONDS):
            while True:
                await asyncio.to_thread(container.reload)
                if container.status not in ("running", "restarting"):
                    raise RuntimeError(f"{name} ended: {self.log(name)}")
                try:
                    _, writer = await asyncio.open_connection(self.address(name), port)
                except OSError:
                    await asyncio.sleep(0.2)
                else:
                    writer.close()
                    return

    async def is_ready(self) -> None:
        """Wait until the gateway says that all is ready."""
        url = f"http://{self.address('gateway')}:8000/ready"
        async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.2)


@asynccontextmanager
async def running_stack(images: Mapping[str, str]) -> AsyncGenerator[Stack]:
    """NATS, Ray, a scripted model, the context service, the orchestrator and the gateway, each in its container."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.network import Network

    with Network(docker_network_kw={"internal": True}) as network:
        stack = Stack(network=network.name, context_token=secrets.token_urlsafe(32))
        nats_token, ray_token = secrets.token_urlsafe(32), secrets.token_hex(32)
        common = {
            "FLEET_NATS_URL": "nats://nats:4222",
            "FLEET_NATS_TOKEN": nats_token,
            "FLEET_MODEL_URL": "http://model:8000/v1",
            "FLEET_MODEL": "scripted",
            "FLEET_CONTEXT_URL": "context:50056",
            "FLEET_CONTEXT_TOKEN": stack.context_token,
        }
        ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ray_token, "RAY_USAGE_STATS_ENABLED": "0"}
        async with AsyncExitStack() as ending:

            async def start(
                name: str, image: str, variables: Mapping[str, str], port: int, command: str = "", **settings: Any
            ) -> None:
                container = DockerContainer(images[image]).with_network(network).with_network_aliases(name)
                container.with_envs(**variables).with_kwargs(**_HARDENED, hostname=name, **settings)
                container.with_volume_mapping(f"{name}-home", HOME, "rw").with_tmpfs_mount("/tmp", "size=2g,exec")
                if name == "model":
                    container.with_volume_mapping(str(REPLIES), "/replies.json", "ro")
                if command:
                    container.with_command(command.split())
                stack.containers[name] = container
                await asyncio.to_thread(container.start)
                ending.callback(container.stop)
                await stack.answers(name, port)

            serving = "python -m swe_ai_fleet.testing.scripted_model /replies.json --host 0.0.0.0 --port 8000"
            storing = f"nats-server -a 0.0.0.0 -p 4222 -js -sd {HOME} --auth {nats_token}"
            await start("nats", "fleet-orchestrator", {}, 4222, storing)
            await start("model", "fleet-agent", {}, 8000, serving)
            await start("ray", "fleet-agent", ray, 10001, f"ray start --head --block --disable-usage-stats {_RAY}")
            await start("context", "fleet-context", common, 50056)
            own = {**common, **ray, "FLEET_RAY_ADDRESS": "ray://ray:10001"}
            await start("orchestrator", "fleet-orchestrator", own, 50055)
            stack.token = stack.run("orchestrator", "cat", f"{HOME}/token")[1].strip()
            front = {"FLEET_ORCHESTRATOR_URL": "orchestrator:50055", "FLEET_ORCHESTRATOR_TOKEN": stack.token}
            await start("gateway", "fleet-gateway", {**common, **front}, 8000)
            await stack.is_ready()
            yield stack
