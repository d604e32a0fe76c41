"""`fleet export` and `fleet replay` on a run that really happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory

from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.fleet_client import connected, to_deliberate
from tests.fleet_command import Shell
from tests.scripts import HELLO, HELLO_FILES, HELLO_OPERATIONS

pytestmark = pytest.mark.timeout(120)
AGENT = "agent-dev-1"


@pytest.fixture(scope="module")
async def recorded(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The execution of one agent that added a function, tested and committed it; its tokens are recorded."""
    repository = make_repository(tmp_path_factory.mktemp("recorded") / "r", HELLO_FILES)
    async with connected({"address": fleet.running.address, "token": fleet.running.token}) as client:
        execution_id = await client.submit(to_deliberate(HELLO, repository, model_profile="recorded"))
        assert (await client.events(execution_id))[-1].type == "execution_finished"
    return execution_id


async def exported(shell: Shell, recorded: str, kind: str) -> str:
    done = await shell.fleet("export", recorded, "--format", kind)
    assert done.code == 0, done.err
    return done.out


async def test_a_batch_is_a_trajectory_a_line_for_each_candidate(shell: Shell, recorded: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.results.jsonl"
    file.write_text(json.dumps({"instance_id": "hello-1", "execution_id": recorded}) + "\n")
    done = await shell.fleet("export", str(tmp_path), "--batch")
    assert done.code == 0, done.err
    [line] = [json.loads(line) for line in done.out.splitlines()]
    assert (line["group"], line["winner"], line["rank"], line["verdict"]) == ("hello-1", True, 1, "verified")
    trajectory = Trajectory.model_validate(line["trajectory"])
    operations = [call.function_name for step in trajectory.steps for call in step.tool_calls or ()]
    # Where the baseline is not known in time, an author without a test of its own is asked once more.
    assert operations[len(HELLO_OPERATIONS) :] in (["final_answer"], ["final_answer"] * 2)
    assert [step.source for step in trajectory.steps][:2] == ["system", "user"]
    # The profile of this run records tokens: those that the server counted, each with its log-probability.
    replies = [step.metrics for step in trajectory.steps if step.metrics is not None]
    assert len(replies) == len(operations)
    for metrics in replies:
        assert len(metrics.prompt_token_ids or ()) == metrics.prompt_tokens
        assert len(metrics.completion_token_ids or ()) == len(metrics.logprobs or ()) == metrics.completion_tokens


async def test_openai_messages_answer_each_call_once(shell: Shell, recorded: str) -> None:
    messages: list[dict[str, Any]] = json.loads(await exported(shell, recorded, "openai"))
    asked = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert asked and asked == [message["tool_call_id"] for message in messages if message["role"] == "tool"]


async def test_markdown_and_patch_are_for_people_and_git(shell: Shell, recorded: str, tmp_path: Path) -> None:
    text = await exported(shell, recorded, "markdown")
    assert text.startswith(f"# {AGENT}") and "hello_world" in text
    file = tmp_path / "winner.patch"
    options = ("--format", "patch", "--agent", AGENT, "-o", str(file))
    assert (await shell.fleet("export", recorded, *options)).code == 0
    assert b"+def hello_world():" in file.read_bytes()


async def test_a_replay_goes_the_same_way_and_asks_nobody(
    shell: Shell, recorded: str, model_server: ScriptedModelServer
) -> None:
    asked = model_server.requests
    done = await shell.fleet("replay", recorded, "--json")
    assert (done.code, done.document["same"]) == (0, True), done.out + done.err
    assert "+def hello_world():" in done.document["diff"]
    assert model_server.requests == asked


@pytest.mark.slow  # quick: the replay above
async def test_a_fork_asks_the_model_from_there_on(
    shell: Shell, recorded: str, model_server: ScriptedModelServer, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("You are another one.")
    before, fork = model_server.requests, ("--fork-at", "3", "--prompt", str(tmp_path / "prompt.txt"))
    done = await shell.fleet("replay", recorded, *fork, "--json")
    assert (done.code, done.document["same"], done.document["forked_at"]) == (0, True, 3), done.out + done.err
    assert model_server.requests - before >= len(HELLO_OPERATIONS) - 3
    assert model_server.bodies[-1]["messages"][0]["content"] == "You are another one."
    beyond = await shell.fleet("replay", recorded, "--fork-at", "99")
    assert (beyond.code, "--fork-at" in beyond.err) == (2, True), beyond.err
