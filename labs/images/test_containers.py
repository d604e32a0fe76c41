"""Each service in its image, all of them together on a private network, by a real engine: a task goes through."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from labs.images.engine_images import TITLES, docker
from labs.images.stack import Stack
from swe_ai_fleet.testing.repositories import make_repository
from tests.docker_engine import TestEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2_400)]
FILES = {
    "utils.py": '"""Small things."""\n\n\ndef one():\n    return 1\n',
    "test_utils.py": "import utils\n\n\ndef test_hello():\n    assert utils.hello_world() == 'Hello, World!'\n",
}
SERVICES = ("orchestrator", "context", "gateway")
# In MB, with the base that this machine gives (about 140) and room to grow; what fills them is in docs/images.md.
LARGEST = {
    "fleet-orchestrator": 700,
    "fleet-agent": 700,
    "fleet-runner": 450,
    "fleet-context": 400,
    "fleet-gateway": 400,
}


async def run_task(stack: Stack, repository: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """`fleet run` on this host against the orchestrator in its container; the repository is uploaded."""
    address = f"{stack.address('orchestrator')}:50055"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "swe_ai_fleet.cli.main", "run", "--server", address, "--json", "--repo", "."),
        *("--rounds", "0", "--agents", "2", *arguments, "Add hello_world() to utils.py"),
        cwd=repository,
        env={**os.environ, "FLEET_TOKEN": stack.token, "FLEET_HOME": str(repository.parent / "client")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(300):
        said, told = await process.communicate()
    assert said, told.decode()
    return process.returncode or 0, json.loads(said.splitlines()[-1])


async def get(stack: Stack, path: str, token: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://{stack.address('gateway')}:8000{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if "json" in answer.content_type else text


LOOKS = """
import importlib.util, os, shutil, subprocess, sys
module = sys.argv[1]
assert importlib.util.find_spec(module), module
assert os.getuid() == 10001
unwanted = [name for name in ("gcc", "cc", "make") if shutil.which(name)]
unwanted += [name for name in ("pip", "setuptools", "hatchling", "pyright") if importlib.util.find_spec(name)]
unwanted += [path for path in ("/opt/wheels", "/etc/pip.conf", "/build", "/opt/build") if os.path.exists(path)]
assert not unwanted, unwanted
for place in ("/", "/opt/fleet", "/opt/swe-ai-fleet", "/usr/local/lib"):
    assert not os.access(place, os.W_OK), place
assert os.access("/var/lib/fleet", os.W_OK) and os.access("/tmp", os.W_OK)
"""
AGENT = (
    "set -eu; git --version; rg --version; bwrap --version; ruff --version; ray --version; pytest --version;"
    " python -c 'import docker, psycopg, redis'; test -w /workspace"
)


@pytest.mark.parametrize("title", TITLES)
def test_an_image_is_small_labelled_and_not_of_root(engine: TestEngine, images: dict[str, str], title: str) -> None:
    """It has what it runs, and no tools to build with."""
    image = images[title]
    found = json.loads(docker(engine.host, "image", "inspect", image))[0]
    configured = found["Config"]
    assert configured["User"] == "10001:10001" and configured["Entrypoint"] == ["tini", "--"]
    assert configured["Cmd"][:2] == ["python", "-m"]
    labels = configured["Labels"]
    assert labels["org.opencontainers.image.title"] == title
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0" and labels["org.opencontainers.image.version"]
    assert found["Size"] / 1e6 < LARGEST[title]
    looks = [("python", "-c", LOOKS, configured["Cmd"][2])] + [("sh", "-c", AGENT)] * (title == "fleet-agent")
    for command in looks:
        docker(engine.host, "run", "--rm", "--network", "none", image, *command)
    history = docker(engine.host, "history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    assert "index" not in history and "wheels" not in history


async def test_a_task_goes_through_and_the_gateway_tells_of_it(stack: Stack, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", FILES)
    name = f"containers-{uuid.uuid4().hex[:8]}"
    code, ended = await run_task(stack, repository, "--task-id", name)
    assert code == 0, ended
    assert "def hello_world" in ended["diff"]
    assert [one["status"] for one in ended["agents"]] == ["finished", "finished"]

    assert (await get(stack, "/health"))[0] == 200
    status, _ = await get(stack, "/api/executions")
    assert status == 401
    status, listed = await get(stack, "/api/executions", stack.token)
    assert status == 200 and name in json.dumps(listed)
    # The agents ran in the container of Ray, not in the orchestrator's.
    assert (
        "AgentHost" in stack.run("ray", "ps", "ax")[1] and "AgentHost" not in stack.run("orchestrator", "ps", "ax")[1]
    )


@pytest.mark.parametrize("name", ["nats", "model", "ray", *SERVICES])
async def test_a_container_has_no_rights_that_it_does_not_need(stack: Stack, name: str) -> None:
    _, said = stack.run(name, "python3", "-c", "print(open('/proc/1/status').read())")
    rows = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert set(rows["Uid"].split()) == {"10001"} and set(rows["Gid"].split()) == {"10001"}
    assert int(rows["CapEff"], 16) == int(rows["CapBnd"], 16) == 0 and rows["NoNewPrivs"] == "1"
    code, said = stack.run(name, "touch", "/opt/fleet/here")
    assert code != 0 and "Read-only" in said
    # Nothing leaves the private network.
    looks = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)"
    assert stack.run(name, "python3", "-c", looks)[0] != 0


@pytest.mark.parametrize("name", ["gateway", "orchestrator", "context", "nats"])
async def test_sigterm_drains(stack: Stack, name: str) -> None:
    """The last test of the stack: it stops it, in the order in which nobody misses anybody."""
    began = time.monotonic()
    assert await asyncio.to_thread(stack.stop, name) == 0, stack.log(name)
    assert time.monotonic() - began < 30
