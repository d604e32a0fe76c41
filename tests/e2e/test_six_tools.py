"""One agent that uses all six tools in one task: files, git, tests, docker, http and db."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swe_ai_fleet import ToolEnabledAgent
from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.docker_engine import BUSYBOX, NoEngine, TestEngine, docker_engine

pytestmark = pytest.mark.slow
docker = pytest.importorskip("docker")

TASK = "Note the version that service, database and container agree on"
DOCKERFILE = 'FROM scratch\nCOPY busybox /bin/busybox\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n'
PASSING = "def test_version():\n    assert open('VERSION').read() == '42\\n'\n"


@pytest.fixture
async def service() -> AsyncIterator[str]:
    """A server of a private network; `host:port`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nversion 42")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TestEngine]:
    """An engine with an image of somebody else's."""
    try:
        with docker_engine() as running:
            (tmp_path / "image").mkdir()
            shutil.copy(BUSYBOX, tmp_path / "image/busybox")
            (tmp_path / "image/Dockerfile").write_text(DOCKERFILE)
            client = docker.DockerClient(base_url=running.host)
            client.images.build(path=str(tmp_path / "image"), tag="base:1", network_mode="none", rm=True)
            client.close()
            yield running
    except NoEngine as reason:
        pytest.skip(str(reason))


async def test_all_six_tools_in_one_task(tmp_path: Path, service: str, engine: TestEngine) -> None:
    with sqlite3.connect(tmp_path / "notes.db") as database:
        database.execute("CREATE TABLE note (version)")
        database.execute("INSERT INTO note VALUES ('42')")
    clone = make_repository(tmp_path / "clone", {"test_version.py": PASSING})
    calls: tuple[tuple[str, dict[str, object]], ...] = (
        ("request_tools", {"names": ["docker_run", "http_get", "db_sqlite_query"]}),
        ("http_get", {"url": f"http://{service}/version"}),
        ("db_sqlite_query", {"sql": "SELECT version FROM note", "connection": "notes"}),
        ("docker_run", {"image": "base:1", "command": ["echo", "version 42"]}),
        ("files_write_file", {"path": "VERSION", "content": "42\n"}),
        ("tests_run", {}),
        ("git_add", {"paths": ["VERSION"]}),
        ("git_commit", {"message": "Note the version"}),
    )
    turns = (*(Turn(tool_calls=(call,)) for call in calls), Turn(tool_calls=(("final_answer", {"result": "Noted."}),)))
    settings = Settings(
        home=tmp_path / "home",
        tool_private_hosts=service,
        tool_hosts="",
        databases={"notes": f"sqlite://{tmp_path}/notes.db"},
        docker={"host": engine.host, "images": ["base:*"]},
    )
    async with ScriptedModelServer(Script(conversations=(Conversation(match=TASK, turns=turns),))) as model:
        agent = ToolEnabledAgent("a", "DEV", clone, model.url, "scripted", settings=settings)
        result = await agent.execute_task(TASK, constraints={"allowed_hosts": [service]})
        first, last = (body["tools"] for body in (model.bodies[-len(turns)], model.bodies[-1]))
        told = json.dumps([body["messages"] for body in model.bodies])
    assert result.success, result.error
    outcomes = [(operation["tool"], operation["outcome"]) for operation in result.operations]
    six = ("http", "db", "docker", "files", "tests", "git", "git")
    assert outcomes == [("request_tools", "success"), *((tool, "success") for tool in six)]
    assert told.count("version 42") >= 2
    # What was shown at first stands where it stood, so that the prefix cache still serves it.
    assert last[: len(first)] == first
    added = {tool["function"]["name"] for tool in last[len(first) :]}
    assert {"docker_run", "db_sqlite_query"} <= added
    assert verify(result.audit_trail, head=str(result.to_dict()["audit_head"])) is None
    assert git(clone, "show", "HEAD:VERSION").strip() == "42"
