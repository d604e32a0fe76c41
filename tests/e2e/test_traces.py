"""A task's trace, as a collector gets it: one tree, from the caller to each call of a model and of a tool."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO, HELLO_FILES, HELLO_OPERATIONS
from tests.trace_collector import CollectedSpan, TraceCollector

_LAST = "send agent.results"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("traced") / "repository", HELLO_FILES)


def _traceparent(trace_id: str, span_id: str, flags: str = "01") -> str:
    return f"00-{trace_id}-{span_id}-{flags}"


async def _ended(client, token: str, repository: Path, traceparent: str, *, agents: int = 2) -> str:
    """The task id of a task that an orchestration has carried out under a caller's trace."""
    metadata = (("authorization", f"Bearer {token}"), ("traceparent", traceparent))
    task_id = f"traced-{uuid.uuid4().hex[:8]}"
    task = pb.OrchestrateRequest(
        task_id=task_id, task_description=HELLO, repo=pb.RepoRef(path=str(repository)), role="DEVELOPER",
        options=pb.OrchestratorOptions(num_agents=agents),
    )  # fmt: skip
    submitted = await client.SubmitTask(pb.SubmitTaskRequest(orchestrate=task), metadata=metadata)
    async for event in client.StreamExecution(
        pb.StreamExecutionRequest(execution_id=submitted.execution_id), metadata=metadata[:1]
    ):
        last = event
    assert last.type == "execution_finished", last
    return task_id


def _published(trace_id: str, results: int):
    def there(spans: Sequence[CollectedSpan]) -> bool:
        mine = [one.name for one in spans if one.trace_id == trace_id]
        # Its own result and those of both agents; the orchestrator's own comes last.
        return mine.count(_LAST) >= results and "execution" in mine

    return there


@pytest.mark.slow  # quick: test_a_trace_goes_on_over_http_and_over_nats, integration/test_tracing.py
async def test_a_task_is_one_tree_of_spans_across_processes(
    fleet: FleetUnderTest, repository: Path, collector: TraceCollector, model_server: ScriptedModelServer
) -> None:
    trace_id, caller, unsampled = secrets.token_hex(16), secrets.token_hex(8), secrets.token_hex(16)
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        client, token = pb_grpc.OrchestratorServiceStub(channel), fleet.running.token
        not_sampled = _traceparent(unsampled, secrets.token_hex(8), "00")
        # What nobody wants a trace of is over first, so its spans would be there, too.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_ended(client, token, repository, not_sampled, agents=1))
            task = tasks.create_task(_ended(client, token, repository, _traceparent(trace_id, caller)))
    await collector.until(_published(trace_id, 3))
    spans = collector.trace(trace_id)
    assert spans and not collector.trace(unsampled)
    by_id = {one.span_id: one for one in spans}
    names = {one.span_id: one.name for one in spans}
    told = "\n".join(f"{one.service}: {one.name} <- {names.get(one.parent_id, one.parent_id)}" for one in spans)

    # One root: what the caller's own span is the parent of. Everybody else's parent has come in.
    roots = [one for one in spans if one.parent_id not in by_id]
    assert [(one.name, one.parent_id) for one in roots] == [
        ("fleet.orchestrator.v1.OrchestratorService/SubmitTask", caller)
    ], told

    def kind(span: CollectedSpan) -> str:
        start = span.name.split()[0]
        return start if start in ("invoke_agent", "chat", "execute_tool") else span.name

    parents: dict[str, set[str]] = {}
    for one in spans:
        parents.setdefault(kind(one), set()).update(kind(by_id[i]) for i in [one.parent_id] if i in by_id)
    expected = {
        "accept": {"fleet.orchestrator.v1.OrchestratorService/SubmitTask"},
        "execution": {"accept"},
        "queue": {"execution"},
        "apply": {"execution"},
        "ray run": {"draft"},
        "ray check": {"check"},
        "invoke_agent": {"ray run"},
        "chat": {"invoke_agent"},
        "execute_tool": {"invoke_agent"},
        _LAST: {"execution", "invoke_agent"},
    }
    assert {name: parents[name] for name in expected} == expected, told
    # What the script says of each of two agents: seven replies, the last without a call, and six calls.
    count = Counter(map(kind, spans))
    assert [count[name] for name in ("invoke_agent", "chat", "execute_tool", _LAST)] == [2, 14, 12, 3], told
    assert {one.name[13:] for one in spans if kind(one) == "execute_tool"} == set(HELLO_OPERATIONS)
    assert {one.service for one in spans} == {"fleet-orchestrator", "fleet-agent-host"}, told

    (execution,) = [one for one in spans if one.name == "execution"]
    assert execution.attributes["fleet.status"] == "completed"
    assert {one.attributes["fleet.task_id"] for one in spans if "fleet.task_id" in one.attributes} == {task.result()}
    # Nobody asked for what was said.
    assert not [key for one in spans for key in one.attributes if "messages" in key or "arguments" in key]
