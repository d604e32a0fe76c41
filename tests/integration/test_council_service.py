"""Councils over the command line, and a task that one of them solves."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_client import Client, to_deliberate
from tests.fleet_command import Shell
from tests.scripts import FAILING, HELLO_FILES


@pytest.mark.slow
async def test_the_whole_fleet_from_the_command_line(client: Client, shell: Shell, tmp_path: Path) -> None:
    # Requests at random may have made one before.
    await shell.fleet("councils", "delete", "DATA")
    made = await shell.fleet("councils", "create", "DATA", "--agents", "1", "--rounds", "0", "--json")
    assert made.document == {"council_id": "council-data", "agent_ids": ["agent-data-1"]}
    ada = ("register", "DATA", "ada", "--language", "python", "--metadata")
    for words, code, said in (
        (("register", "DATA", "outsider", "--endpoint", "127.0.0.1:7000"), 2, "FLEET_AGENT_ENDPOINTS"),
        ((*ada, "a=b"), 0, "2 in the council"),
        ((*ada, "a"), 2, "K=V"),
    ):
        ended = await shell.fleet("councils", *words)
        assert (ended.code, said in ended.out + ended.err) == (code, True), ended
    listed = await shell.fleet("councils", "list", "--role", "DATA")
    rows = [line.split() for line in listed.out.splitlines()]
    assert listed.code == 0 and ["council-data", "DATA", "2", "active", "scripted"] in rows
    assert ["ada", "DATA", "the", "fleet", "0", "python"] in rows

    none = pb.TaskConstraints(checks=[pb.CheckSpec(name="none", command="false")])
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    task = to_deliberate(FAILING, repository, role="DATA", constraints=none, num_agents=0, enable_peer_review=None)
    reply = await client.stub.Deliberate(task, **client.call)
    assert {name for one in reply.results for name in (one.candidate_id, *one.duplicates)} == {"agent-data-1", "ada"}
    for words, code, said in (
        (("unregister", "DATA", "ada"), 0, "has left"),
        (("unregister", "DATA", "ada", "--json"), 2, '"field": "agent_id"'),
        (("delete", "DATA"), 0, "deleted"),
        (("delete", "DATA"), 2, ""),
    ):
        ended = await shell.fleet("councils", *words)
        assert (ended.code, said in (ended.out + ended.err).replace('":"', '": "')) == (code, True), ended
