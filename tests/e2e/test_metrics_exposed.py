"""What a fleet tells Prometheus, and that every dashboard and alert asks for what is really told."""

from __future__ import annotations

import re
from collections.abc import Mapping

import grpc.aio
import httpx2
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.promql import by_series, expressions, faults
from tests.scripts import HELLO, HELLO_FILES

RUNNERS = "fleet_runner_"
"""What runners of jobs tell, processes of their own."""


@pytest.fixture(scope="module")
async def told(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Metric]:
    """Everything that a fleet which has carried out a task tells, by the name of its series."""
    repository = make_repository(tmp_path_factory.mktemp("measured") / "repository", HELLO_FILES)
    token = (("authorization", f"Bearer {fleet.running.token}"),)
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        client = pb_grpc.OrchestratorServiceStub(channel)
        task = pb.DeliberateRequest(
            task_id="measured", task_description=HELLO, repo=pb.RepoRef(path=str(repository)), num_agents=1
        )
        reply = await client.Deliberate(task, metadata=token, timeout=120)
        assert reply.status == pb.DELIBERATION_STATUS_COMPLETED, reply
        with pytest.raises(grpc.aio.AioRpcError):
            await client.GetStatus(pb.GetStatusRequest(), metadata=(("authorization", "Bearer wrong"),))
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
