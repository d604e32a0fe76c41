"""Traces of a process, as a collector over HTTP gets them, and what becomes of the work when there is none."""

from __future__ import annotations

import secrets
import socket
from dataclasses import replace

import aiohttp
import pytest
from structlog.testing import capture_logs

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, UserMessage
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.ports import EventLog
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import open_telemetry
from tests.trace_collector import TraceCollector

TASK = Task(
    task_id="t1", kind=TaskKind.DELIBERATE, description="do it", repo=RepoRef(location="/nowhere"), tenant="acme"
)
ACCEPTOR = ev.Writer(tenant="acme", execution_id=TASK.execution_id, task_id="t1", generation=0)
SECRET = "-".join(("nobody", "guesses", "this"))


async def _run(log: EventLog, agent_id: str = "dev-1") -> None:
    """What an agent's process writes."""
    said = AssistantMessage(content=f"I found {SECRET}")
    entry = AuditEntry(
        seq=1, at="", execution_id=TASK.execution_id, agent_id=agent_id, call_id="c1", tool="files",
        operation="read_file", arguments={"path": SECRET}, outcome=Outcome.ERROR, duration_ms=30,
    )  # fmt: skip
    result = ToolResult(success=False, operation="read_file", error=f"no file {SECRET}", outcome=Outcome.ERROR)
    usage = Usage(prompt_tokens=10, completion_tokens=5, model_calls=1)
    async with log.journal(replace(ACCEPTOR, agent_id=agent_id, generation=1)) as journal:
        journal.post(ev.RunStarted(role="DEV", model="small", messages=(UserMessage(content=SECRET),), tools=()))
        server = "models.example:8000"
        reply = ModelReply(message=said, finish_reason="stop", usage=usage, model="small-1", server=server)
        journal.post(ev.ModelReplied(step=1, reply=reply, duration_ms=250))
        journal.post(ev.ToolFinished(entry=entry, result=result))
        await journal.append(
            ev.RunFinished(stop_reason=StopReason.MODEL_ERROR, artifacts=Artifacts(), usage=usage, audit_head="")
        )


@pytest.mark.parametrize("content", [False, True])
async def test_an_agents_run_is_told_with_its_calls_and_what_was_said_if_asked_for_and_masked(
    collector: TraceCollector, content: bool
) -> None:
    trace_id, caller = secrets.token_hex(16), secrets.token_hex(8)
    chosen = Settings(otlp_endpoint=collector.url, trace_content=content)
    async with open_telemetry(chosen, service="host", mask=lambda text: text.replace(SECRET, "***")) as telemetry:
        with telemetry.continuing(f"00-{trace_id}-{caller}-01"):
            await _run(telemetry.observed(MemoryLog()))
    spans = {one.name: one for one in collector.trace(trace_id)}
    assert set(spans) == {"invoke_agent dev-1", "chat small", "execute_tool files_read_file"}
    run, chat, tool = (spans[name] for name in ("invoke_agent dev-1", "chat small", "execute_tool files_read_file"))
    assert (run.parent_id, chat.parent_id, tool.parent_id) == (caller, run.span_id, run.span_id)
    assert run.failed and run.attributes["error.type"] == "model_error"
    assert tool.failed and tool.attributes["error.type"] == "error"
    conventions = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.response.model": "small-1",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "server.address": "models.example",
    }
    assert conventions.items() <= chat.attributes.items() and (chat.kind, tool.kind) == ("client", "internal")
    assert (run.attributes["gen_ai.agent.name"], run.attributes["fleet.role"]) == ("dev-1", "DEV")
    said = str([one.attributes for one in spans.values()])
    assert SECRET not in said and ("***" in said) is content
    if content:
        assert "I found ***" in str(chat.attributes["gen_ai.output.messages"])
        assert tool.attributes["gen_ai.tool.call.arguments"] == '{"path": "***"}'
        assert "no file ***" in str(tool.attributes["gen_ai.tool.call.result"])


async def test_of_several_processes_with_one_port_for_metrics_each_takes_the_next_free_one() -> None:
    assert Settings.model_fields["metrics_listen"].default == "127.0.0.1:9090"
    with socket.socket() as first, capture_logs() as lines:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        settings = Settings(metrics_listen=f"127.0.0.1:{port}")
        async with open_telemetry(settings, service="one") as one, open_telemetry(settings, service="two") as two:
            urls = [telemetry.metrics_url for telemetry in (one, two)]
            async with aiohttp.ClientSession() as http:
                for url in urls:
                    async with http.get(url) as reply:
                        assert reply.status == 200
        assert len({*urls, f"http://127.0.0.1:{port}/metrics"}) == 3
    assert {line["log_level"] for line in lines if line["event"] == "metrics.port_taken"} == {"warning"}
    with pytest.raises(PreconditionFailed) as fault:
        async with open_telemetry(Settings(metrics_listen="192.0.2.1:9090"), service="nowhere"):
            raise AssertionError("it opened")
    assert fault.value.field == "metrics_listen"
