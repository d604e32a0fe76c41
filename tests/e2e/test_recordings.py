"""`fleet export` and `fleet replay` on a run that really happened."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.agents.exports import markdown, whole_run
from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.execution import ExecutionState, fold
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.runtime.replay import replay
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.watching.events import stored_event
from tests.conftest import FleetUnderTest
from tests.fleet_command import Shell
from tests.scripts import HELLO, HELLO_FILES, HELLO_OPERATIONS

pytestmark = pytest.mark.timeout(120)
AGENT = "agent-dev-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An execution that has ended."""

    execution_id: str
    state: ExecutionState
    run: RunState


@pytest.fixture(scope="module")
async def recorded(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """One agent that added a function, tested and committed it; its tokens are recorded."""
    repository = make_repository(tmp_path_factory.mktemp("recorded") / "r", HELLO_FILES)
    async with connect(fleet.running.address, fleet.running.token) as client:
        request = pb.DeliberateRequest(
            task_id=f"recorded-{uuid.uuid4().hex[:8]}",
            task_description=HELLO,
            repo=pb.RepoRef(path=str(repository)),
            num_agents=1,
            model_profile="recorded",
        )
        submitted = await client.submit(pb.SubmitTaskRequest(deliberate=request))
        events = [stored_event(event) async for event in client.events(submitted.execution_id)]
    known = [event for event in events if event is not None]
    state = fold(known)
    assert state is not None and state.winner_id == AGENT
    run = whole_run((stored.event for stored in known), AGENT)
    return Recorded(execution_id=submitted.execution_id, state=state, run=run)


async def exported(shell: Shell, recorded: Recorded, kind: str) -> str:
    done = await shell.fleet("export", recorded.execution_id, "--format", kind)
    assert done.code == 0, done.err
    return done.out


async def test_a_batch_is_a_trajectory_a_line_for_each_candidate(
    shell: Shell, recorded: Recorded, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.results.jsonl"
    file.write_text(json.dumps({"instance_id": "hello-1", "execution_id": recorded.execution_id}) + "\n")
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


async def test_openai_messages_answer_each_call_once(shell: Shell, recorded: Recorded) -> None:
    messages: list[dict[str, Any]] = json.loads(await exported(shell, recorded, "openai"))
    asked = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert asked and asked == [message["tool_call_id"] for message in messages if message["role"] == "tool"]


async def test_markdown_and_patch_are_for_people_and_git(shell: Shell, recorded: Recorded, tmp_path: Path) -> None:
    text = await exported(shell, recorded, "markdown")
    assert text.startswith(f"# {AGENT}") and "hello_world" in text
    file = tmp_path / "winner.patch"
    options = ("--format", "patch", "--agent", AGENT, "-o", str(file))
    assert (await shell.fleet("export", recorded.execution_id, *options)).code == 0
    assert b"+def hello_world():" in file.read_bytes()


def test_a_fence_in_an_output_cannot_end_the_block(recorded: Recorded) -> None:
    last = recorded.run.steps[-1]
    hostile = replace(last, reply=replace(last.reply, content="```\n# Approved by Ada\n````"))
    text = markdown(replace(recorded.run, steps=(*recorded.run.steps[:-1], hostile)))
    assert "`````\n```\n# Approved by Ada\n````\n`````" in text


async def test_a_replay_goes_the_same_way_and_asks_nobody(
    shell: Shell, recorded: Recorded, model_server: ScriptedModelServer
) -> None:
    asked = model_server.requests
    done = await shell.fleet("replay", recorded.execution_id, "--json")
    assert (done.code, done.document["same"]) == (0, True), done.out + done.err
    assert "+def hello_world():" in done.document["diff"]
    assert model_server.requests == asked


@pytest.mark.slow  # quick: the replay above
async def test_a_fork_asks_the_model_from_there_on(
    recorded: Recorded, fleet: FleetUnderTest, model_server: ScriptedModelServer
) -> None:
    settings = fleet.settings.model_copy(update={"model_url": model_server.url})
    before = model_server.requests
    done = await replay(settings, recorded.state, recorded.run, fork_at=3, prompt="You are another one.")
    assert done.same and done.forked_at == 3
    assert len(done.trajectory.steps) == len(recorded.run.steps)
    assert model_server.requests - before >= len(recorded.run.steps) - 3
    assert model_server.bodies[-1]["messages"][0]["content"] == "You are another one."


async def test_what_was_never_carried_out_is_not_carried_out_now(recorded: Recorded, fleet: FleetUnderTest) -> None:
    """A run that was cancelled while a call waited for a person."""
    written = recorded.run.steps[1]
    waiting = replace(recorded.run, steps=(recorded.run.steps[0], replace(written, observations=())), finished=None)
    done = await replay(fleet.settings, recorded.state, waiting)
    assert done.same and not done.diff.files
    (seen,) = done.trajectory.steps[1].observations
    assert not seen.result.success and "it was not when this was recorded" in seen.result.error
    # Where the world has changed, it says so.
    (seen,) = recorded.run.steps[0].observations
    other = replace(seen, result=replace(seen.result, content="another file"))
    changed = replace(recorded.run, steps=(replace(recorded.run.steps[0], observations=(other,)), written))
    found = (await replay(fleet.settings, recorded.state, changed)).differences
    assert (found[0].step, found[0].operation, found[0].recorded) == (1, "files_read_file", "another file")
    with pytest.raises(InvalidRequest) as caught:
        await replay(fleet.settings, recorded.state, recorded.run, fork_at=99)
    assert caught.value.field == "fork_at"
