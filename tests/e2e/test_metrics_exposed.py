"""What a fleet tells Prometheus, and that every dashboard and alert asks for what is really told."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc.aio
import httpx2
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.fleet_client import Client, connected, to_deliberate, to_orchestrate
from tests.promql import by_series, expressions, faults
from tests.scripts import HELLO, HELLO_FILES, HELLO_OPERATIONS
from tests.trace_collector import CollectedSpan, TraceCollector

RUNNERS = "fleet_runner_"
"""What runners of jobs tell, processes of their own."""


@pytest.fixture(scope="module")
async def told(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Metric]:
    """Everything that a fleet which has carried out a task tells, by the name of its series."""
    repository = make_repository(tmp_path_factory.mktemp("measured") / "repository", HELLO_FILES)
    async with connected({"address": fleet.running.address, "token": fleet.running.token}) as client:
        reply = await client.stub.Deliberate(to_deliberate(HELLO, repository, task_id="measured"), **client.call)
        assert reply.status == pb.DELIBERATION_STATUS_COMPLETED, reply
        with pytest.raises(grpc.aio.AioRpcError):
            await client.stub.GetStatus(pb.GetStatusRequest(), metadata=(("authorization", "Bearer wrong"),))
    async with httpx2.AsyncClient() as http:
        headers = {"authorization": f"Bearer {fleet.running.token}"}
        assert (await http.get(f"{fleet.running.http}/api/executions", headers=headers)).status_code == 200
        assert (await http.get(f"{fleet.running.http}/api/nothing", headers=headers)).status_code == 404
        # The meter follows the log, and the fleet is measured in the background.
        for _ in range(60):
            families = list(text_string_to_metric_families((await http.get(fleet.running.metrics)).text))
            found = {family.name: family for family in families}
            sources = {one.labels["source"]: one.value for one in found["fleet_scrape_source_up"].samples}
            finished = found.get("fleet_executions_finished")
            if all(sources.values()) and finished and sum(one.value for one in finished.samples):
                break
    assert sources == {"log": 1, "orchestrator": 1, "fleet": 1, "nats": 1, "gateway": 1, "certificates": 1}
    return by_series(families)


# At least so much is told of the task, the calls and the fleet. The script has seven replies.
TOLD: tuple[tuple[str, float, dict[str, str]], ...] = (
    ("fleet_executions_accepted_total", 1, {"tenant": "default"}),
    ("fleet_executions_finished_total", 1, {"status": "completed"}),
    ("fleet_queue_wait_seconds_count", 1, {}),
    ("fleet_execution_duration_seconds_count", 1, {"kind": "deliberation"}),
    ("fleet_agent_runs_stopped_total", 1, {"reason": "final_answer"}),
    ("fleet_agent_steps_total", 7, {}),
    ("fleet_tokens_total", 1, {"type": "prompt"}),
    ("fleet_model_calls_total", 7, {"model": "scripted"}),
    ("fleet_tool_calls_total", 1, {"operation": "files_read_file", "outcome": "success"}),
    ("fleet_check_duration_seconds_count", 1, {}),
    ("fleet_log_append_duration_seconds_count", 4, {}),
    ("fleet_grpc_requests_total", 1, {"method": "Deliberate", "code": "OK"}),
    ("fleet_grpc_requests_total", 1, {"method": "GetStatus", "code": "UNAUTHENTICATED"}),
    ("fleet_http_requests_total", 1, {"route": "/api/executions", "status": "200"}),
    ("fleet_http_requests_total", 1, {"route": "other", "status": "404"}),
    *((f"fleet_{name}", 1, {}) for name in ("lease_held", "nats_up", "model_server_up")),
    ("fleet_hosts", 1, {"state": "up"}),
    ("fleet_stream_messages", 1, {"stream": "AGENT_EVENTS"}),
    ("fleet_drives_limit", 200, {}),
    ("process_resident_memory_bytes", 1_000_000, {}),
)


def test_a_task_calls_and_the_fleet_are_counted(told: Mapping[str, Metric]) -> None:
    for name, least, labels in TOLD:
        same = [one for one in told[name].samples if one.name == name and labels.items() <= one.labels.items()]
        assert sum(one.value for one in same) >= least, (name, labels)


def test_no_label_is_an_id_and_names_are_what_prometheus_wants(told: Mapping[str, Metric]) -> None:
    ids = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-|measured|agent-dev-\d")
    labels = {label for family in told.values() for sample in family.samples for label in sample.labels.values()}
    assert not [label for label in labels if ids.search(label)]
    assert all(len(family.samples) < 2_000 for family in told.values())
    for name, family in told.items():
        if name.startswith("fleet_"):
            assert family.documentation.endswith("."), name
            assert "duration" not in name or "_seconds" in name, name
            assert family.type != "gauge" or not name.endswith(("_total", "_count")), name


async def test_only_metrics_are_served_there(fleet: FleetUnderTest) -> None:
    base = fleet.running.metrics.removesuffix("/metrics")
    async with httpx2.AsyncClient() as http:
        statuses = {path: (await http.get(f"{base}{path}")).status_code for path in ("/", "/health", "/api/executions")}
        posted = (await http.post(f"{base}/metrics", content=b"x")).status_code
        answer = await http.get(fleet.running.metrics, headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert set(statuses.values()) == {404} and posted == 405
    # The stricter of the two formats, read by its own parser.
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert "fleet_executions_accepted" in {family.name for family in open_metrics(answer.text)}


def test_dashboards_and_alerts_ask_for_what_is_told(told: Mapping[str, Metric]) -> None:
    asked = [one for one in expressions() if RUNNERS not in one[1]]
    assert len(asked) > 75
    assert faults(asked, told) == []


# --- a task's trace, as a collector gets it: one tree, from the caller to each call of a model and of a tool ---


_LAST = "send agent.results"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("traced") / "repository", HELLO_FILES)


def _traceparent(trace_id: str, span_id: str, flags: str = "01") -> str:
    return f"00-{trace_id}-{span_id}-{flags}"


async def _ended(client: Client, repository: Path, traceparent: str, *, agents: int = 2) -> str:
    """The task id of a task that an orchestration has carried out under a caller's trace."""
    task = to_orchestrate(HELLO, repository, agents=agents, role="DEVELOPER")
    metadata = (*client.call["metadata"], ("traceparent", traceparent))
    submitted = await client.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=task), metadata=metadata)
    assert (await client.events(submitted.execution_id))[-1].type == "execution_finished"
    return task.task_id


def _published(trace_id: str, results: int):
    def there(spans: Sequence[CollectedSpan]) -> bool:
        mine = [one.name for one in spans if one.trace_id == trace_id]
        # Its own result and those of both agents; the orchestrator's own comes last.
        return mine.count(_LAST) >= results and "execution" in mine

    return there


@pytest.mark.slow  # quick: test_a_trace_goes_on_over_http_and_over_nats, integration/test_tracing.py
async def test_a_task_is_one_tree_of_spans_across_processes(
    client: Client, repository: Path, collector: TraceCollector
) -> None:
    trace_id, caller, unsampled = secrets.token_hex(16), secrets.token_hex(8), secrets.token_hex(16)
    not_sampled = _traceparent(unsampled, secrets.token_hex(8), "00")
    # What nobody wants a trace of is over first, so its spans would be there, too.
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_ended(client, repository, not_sampled, agents=1))
        task = tasks.create_task(_ended(client, repository, _traceparent(trace_id, caller)))
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
