"""`fleet context` and `fleet memory` against a running context service."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog
from typer.testing import CliRunner

from swe_ai_fleet.cli.main import app
from swe_ai_fleet.extensions.knowledge.service import RunningContext
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from tests.extensions.knowledge.test_context_service import TOKEN, serving, settings_for


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Runs commands as a user of a home does, where a fleet's card lies."""

    home: Path
    running: RunningContext

    async def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        variables = {"FLEET_HOME": str(self.home), "FLEET_CONTEXT_URL": "", "FLEET_CONTEXT_TOKEN": "", **environment}
        # The service in this process logs while the command has standard output, and that stream is gone afterwards.
        own = structlog.get_config() | {"logger_factory": structlog.PrintLoggerFactory(sys.__stderr__)}
        structlog.configure(**own)
        result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=variables)
        structlog.configure(**own)
        assert result.exit_code == code, result.output
        return result.output

    async def json(self, *arguments: str, code: int = 0, **environment: str) -> Any:
        return json.loads(await self.run(*arguments, "--json", code=code, **environment))


@pytest.fixture(scope="module")
async def terminal(nats_server: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Terminal]:
    home = tmp_path_factory.mktemp("home")
    async with serving(settings_for(home, nats_server)) as service:
        running = service.running
        card = {"address": "127.0.0.1:1", "token": TOKEN, "pid": os.getpid(), "context": running.address}
        (home / "fleet.json").write_text(json.dumps(card))
        yield Terminal(home=home, running=running)


async def test_a_project_told_shown_and_related(terminal: Terminal) -> None:
    story, task, decision = (f"{kind}-{uuid4().hex[:6]}" for kind in "STD")
    said = await terminal.run("context", "story", story, "Log in with a passkey", "--criterion", "it works")
    assert f"story {story} is in phase plan (version 1)" in said
    added = await terminal.json("context", "task", story, task, "The endpoint", "--role", "dev", "--expect", "1")
    assert (added["version"], added["task"]["role"], added["task"]["state"]) == (2, "dev", "open")
    decided = await terminal.json(
        *("context", "decide", decision, "WebAuthn", "--story", story, "--why", "browsers have it"),
        *("--instead-of", "passwords", "--affects", task, "--role", "DEV"),
    )
    assert (decided["decision"]["roles"], decided["decision"]["alternatives"]) == (["dev"], ["passwords"])
    assert decided["decision"]["decided_by"]
    assert "plan -> design" in await terminal.run("context", "phase", story, "design")
    back = await terminal.json("context", "phase", story, "plan", code=2)
    assert back["error"]["field"] == "reason"
    shown = await terminal.run("context", "show", story, "--task", task, "--role", "dev")
    assert "Log in with a passkey" in shown and "WebAuthn" in shown
    document = await terminal.json("context", "show", story)
    assert (document["version"], len(document["version_hash"])) == (4, 64)
    related = await terminal.run("context", "relations", f"task:{task}")
    assert f"story:{story} contains task:{task}" in related
    assert f"decision:{decision} affects task:{task}" in related
    only = await terminal.json("context", "relations", f"task:{task}", "--kind", "affects")
    assert [one["kind"] for one in only["relations"]] == ["affects"]


async def test_memories_added_recalled_and_cleared(terminal: Terminal) -> None:
    here = ("-n", f"agent:{uuid4().hex[:8]}")
    told = ("memory", "add", "Her favourite colour is teal.", "--metadata", "a=b", *here)
    added = await terminal.json(*told)
    assert "known already" in await terminal.run(*told)
    [found] = (await terminal.json("memory", "recall", "colour", "--kind", "fact", *here))["recollections"]
    assert (found["memory"]["memory_id"], found["memory"]["metadata"]) == (added["memory_id"], {"a": "b"})
    assert (await terminal.json("memory", "clear", added["memory_id"], *here))["removed"] == 1
    assert (await terminal.json("memory", "recall", "colour", *here))["recollections"] == []


async def test_faults_name_what_is_wrong_and_a_way_out(terminal: Terminal, tmp_path: Path) -> None:
    story = f"S-{uuid4().hex[:6]}"
    await terminal.run("context", "story", story, "Log in")
    for arguments, says, hints in (
        (("rate", str(uuid4()), "3"), "no outcome", "fleet show"),
        (("recommend", "x", "--role", "chef"), "'chef' is unknown", "architect"),
        (("context", "task", "none", "T", "x"), "there is no story", "fleet context story"),
        (("context", "phase", story, "design", "--expect", "3"), "version 1", ""),
        (("context", "relations", "task:none"), "unknown node", "story:S-1"),
        (("memory", "add", "x", "--metadata", "topic"), "metadata: 'topic' is not K=V", ""),
        (("memory", "clear"), "namespaces: no namespace given", "--everywhere"),
    ):
        error = (await terminal.json(*arguments, code=2))["error"]
        assert says in f"{error['field']}: {error['message']}", (arguments, error)
        assert hints in error["hint"] + error["message"], (arguments, error)
    address, recall = terminal.running.address, ("memory", "recall", "x")
    nobody = await terminal.json(*recall, code=3, FLEET_HOME=str(tmp_path))
    assert "no context service runs" in nobody["error"]["message"]
    unreached = await terminal.json(*recall, "--server", "127.0.0.1:1", code=3)
    assert "no context service answers at 127.0.0.1:1" in unreached["error"]["message"]
    await terminal.json(*recall, "--server", address, code=2, FLEET_HOME=str(tmp_path))
    found = {"FLEET_HOME": str(tmp_path), "FLEET_CONTEXT_URL": address, "FLEET_CONTEXT_TOKEN": TOKEN}
    assert (await terminal.json(*recall, **found)).keys() == {"recollections"}
