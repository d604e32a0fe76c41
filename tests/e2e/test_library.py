"""The task "Add hello_world() to utils.py" as a library call, and as a Ray actor of the caller's own."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import nats
import pytest

from swe_ai_fleet import ToolEnabledAgent, VLLMAgentJob
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.environments import home_at
from tests.scripts import FAILING, HELLO, HELLO_FILES, SLEEP


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of one home: what one test has built the next one finds."""
    return Settings(home=home_at(tmp_path_factory.mktemp("library") / "home"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "clone", HELLO_FILES)


@pytest.mark.parametrize(
    ("task", "constraints", "success", "verdict"),
    [
        (FAILING, {}, False, "refuted"),
        ("What is in utils.py?", {}, True, None),
    ],
)
async def test_success_is_what_checks_leave_of_an_answer(
    clone: Path,
    settings: Settings,
    model_server: ScriptedModelServer,
    task: str,
    constraints: dict[str, object],
    success: bool,
    verdict: str | None,
) -> None:
    agent = ToolEnabledAgent("a", "DEV", clone, model_server.url, settings=settings)
    result = await agent.execute_task(task, constraints=constraints)
    assert (result.success, result.verdict, str(result.stop_reason)) == (success, verdict, "final_answer")
    assert (result.error is None) is success
    if verdict == "refuted":
        assert result.verdict_reasons and result.verdict_reasons[0] in str(result.error)


async def test_the_agent_clones_where_nothing_is_yet(
    clone: Path, settings: Settings, tmp_path: Path, model_server: ScriptedModelServer
) -> None:
    target = tmp_path / "target"
    agent = ToolEnabledAgent("a", "DEV", target, model_server.url, settings=settings)
    result = await agent.execute_task("What is in utils.py?", constraints={"repo_url": str(clone)})
    assert result.success, result.error
    assert git(target, "rev-parse", "HEAD") == git(clone, "rev-parse", "HEAD")
    assert git(target, "remote") == ""


async def test_a_workspace_without_clone_is_a_clear_error(settings: Settings, tmp_path: Path) -> None:
    agent = ToolEnabledAgent("a", "DEV", tmp_path, "http://127.0.0.1:9/v1", settings=settings)
    with pytest.raises(InvalidRequest, match="repo_url"):
        await agent.execute_task(HELLO)


async def test_limits_and_abort_are_results(clone: Path, settings: Settings, model_server: ScriptedModelServer) -> None:
    agent = ToolEnabledAgent("a", "DEV", clone, model_server.url, settings=settings)
    stopped = await agent.execute_task(HELLO, constraints={"max_iterations": 2})
    assert (stopped.success, stopped.stop_reason) == (False, "max_iterations")
    denied = await agent.execute_task(HELLO, constraints={"denied_tools": ["files"], "abort_on_error": True})
    assert (denied.success, denied.stop_reason) == (False, "tool_error")
    assert denied.operations[0]["outcome"] == "refused"
    assert "files_read_file" in str(denied.operations[0]["error"])


async def test_each_run_of_a_job_is_an_attempt_whose_end_is_published(
    clone: Path, tmp_path: Path, settings: Settings, model_server: ScriptedModelServer, nats_server: EmbeddedNats
) -> None:
    """The actor's own code, without Ray: an answer, the same again, a fault, no workspace, a cancellation."""
    task_id, url = f"job-{uuid.uuid4().hex[:8]}", nats_server.address.url
    given, model = settings.model_dump_json(), model_server.url

    def job(workspace: str) -> VLLMAgentJob:
        actor: Any = VLLMAgentJob
        return actor.__ray_metadata__.modified_class("agent-dev-1", "DEV", model, workspace, url, settings=given)

    connection = await nats.connect(url)
    subscription = await connection.subscribe(f"agent.results.{task_id}")
    results = [await job(str(clone)).run(task_id, "What is in utils.py?") for _ in range(2)]
    for workspace, fault in ((str(tmp_path), "is not a git clone"), ("", "no workspace")):
        with pytest.raises(InvalidRequest, match=fault):
            await job(workspace).run(task_id, HELLO)
    events = await connection.subscribe("agent.events.default.*.agent-dev-1")
    running = asyncio.create_task(job(str(clone)).run(task_id, SLEEP))
    while b"tool_started" not in (await events.next_msg(timeout=60)).data:
        assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    told = [json.loads((await subscription.next_msg(timeout=10)).data) for _ in range(5)]
    assert told[:2] == json.loads(json.dumps(results))
    assert [one["status"] for one in told] == ["final_answer", "final_answer", "error", "error", "cancelled"]
    assert [one["success"] for one in told] == [True, True, False, False, False]
    assert len({one["execution_id"] for one in told}) == 5
    assert "is not a git clone" in told[2]["error"] and "workspace" in told[3]["error"]
    assert all(one["timestamp"] and one["duration_ms"] >= 0 for one in told) and told[0]["duration_ms"]
    schema = json.loads((Path(__file__).parents[2] / "docs/schemas/result.json").read_text())
    for one in told:
        jsonschema.validate(one, schema)
    await connection.close()
