"""Traces of a process, as a collector over HTTP gets them, and what becomes of the work when there is none."""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from structlog.testing import capture_logs

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, UserMessage
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.ports import EventLog
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import open_telemetry, own_telemetry
from tests.trace_collector import TraceCollector

TASK = Task(
    task_id="t1", kind=TaskKind.DELIBERATE, description="do it", repo=RepoRef(location="/nowhere"), tenant="acme"
)
REPOSITORY = PinnedRepository(tenant="acme", location="file:///nowhere", commit="c" * 40)
ACCEPTOR = ev.Writer(tenant="acme", execution_id=TASK.execution_id, task_id="t1", generation=0)
SECRET = "-".join(("nobody", "guesses", "this"))


@pytest.fixture
async def collector() -> AsyncIterator[TraceCollector]:
    async with TraceCollector() as collector:
        yield collector


def _settings(collector: TraceCollector, **more: object) -> Settings:
    return Settings(otlp_endpoint=collector.url, **more)


async def _accepted(log: EventLog) -> Task:
    started = ev.ExecutionStarted(task=TASK, repository=REPOSITORY, fingerprint=TASK.fingerprint())
    async with log.journal(ACCEPTOR, fresh=True) as journal:
        event = await journal.append(started)
    assert isinstance(event.body, ev.ExecutionStarted)
    return event.body.task


def _driver(task: Task, generation: int) -> ev.Writer:
    since = "2026-01-01T00:00:00+00:00"
    return replace(ACCEPTOR, generation=generation, traceparent=task.traceparent, since=since)


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


async def test_another_orchestrator_goes_on_in_the_same_trace(collector: TraceCollector) -> None:
    storage = MemoryLog()
    async with open_telemetry(_settings(collector), service="first") as telemetry:
        log = telemetry.observed(storage)
        task = await _accepted(log)
        async with log.journal(_driver(task, 1)) as journal:
            await journal.append(ev.ExecutionClaimed(generation=1, owner="first"))
    # The first one is gone; the second one knows what stands in the log.
    async with open_telemetry(_settings(collector), service="second") as telemetry:
        log = telemetry.observed(storage)
        async with log.journal(_driver(task, 2)) as journal:
            await journal.append(ev.ExecutionClaimed(generation=2, owner="second"))
            await journal.append(ev.ExecutionFinished(status=ev.ExecutionStatus.FAILED, duration_ms=5_000))
    spans = {one.name: one for one in collector.spans}
    accept, execution = spans["accept"], spans["execution"]
    assert len({one.trace_id for one in collector.spans}) == 1
    assert (accept.service, spans["queue"].service) == ("first", "first")
    assert (execution.service, spans["take over"].service) == ("second", "second")
    assert (accept.parent_id, execution.parent_id) == ("", accept.span_id)
    assert spans["queue"].parent_id == spans["take over"].parent_id == execution.span_id
    assert execution.failed and execution.attributes["error.type"] == "failed"
    assert execution.end - execution.start == 5_000_000_000


@pytest.mark.parametrize("content", [False, True])
async def test_an_agents_run_is_told_with_its_calls_and_what_was_said_if_asked_for_and_masked(
    collector: TraceCollector, content: bool
) -> None:
    trace_id, caller = secrets.token_hex(16), secrets.token_hex(8)
    chosen = _settings(collector, trace_content=content)
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
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small-1",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("stop",),
        "server.address": "models.example",
        "server.port": 8000,
    }
    assert conventions.items() <= chat.attributes.items() and (chat.kind, tool.kind) == ("client", "internal")
    called = {"operation.name": "execute_tool", "tool.name": "files_read_file", "tool.call.id": "c1"}
    assert {f"gen_ai.{name}": value for name, value in called.items()}.items() <= tool.attributes.items()
    assert (run.attributes["gen_ai.agent.name"], run.attributes["fleet.role"]) == ("dev-1", "DEV")
    # Every name is one that the pinned conventions have, or stands under the fleet's own.
    known = {
        value
        for module in (gen_ai_attributes, server_attributes, error_attributes)
        for name, value in vars(module).items()
        if name.isupper()
    }
    operations = {operation.value for operation in gen_ai_attributes.GenAiOperationNameValues}
    providers = {provider.value for provider in gen_ai_attributes.GenAiProviderNameValues}
    for span in spans.values():
        assert {name for name in span.attributes if not name.startswith("fleet.")} <= known
        assert span.name.split()[0] == span.attributes["gen_ai.operation.name"] in operations
        assert span.attributes.get("gen_ai.provider.name", "openai") in providers
    assert (chat.end - chat.start, tool.end - tool.start) == (250_000_000, 30_000_000)
    said = str([one.attributes for one in spans.values()])
    assert SECRET not in said and ("***" in said) is content
    if content:
        assert "I found ***" in str(chat.attributes["gen_ai.output.messages"])
        assert '"***"' in str(chat.attributes["gen_ai.input.messages"])
        assert tool.attributes["gen_ai.tool.call.arguments"] == '{"path": "***"}'
        assert "no file ***" in str(tool.attributes["gen_ai.tool.call.result"])


@pytest.mark.slow  # quick: the other cases
@pytest.mark.parametrize("status", [503, 400, 0])
async def test_a_collector_that_refuses_or_is_not_there_costs_the_work_nothing(status: int) -> None:
    async with TraceCollector(status=status or 200) as collector, asyncio.timeout(10):
        endpoint = collector.url if status else "http://127.0.0.1:9"
        async with open_telemetry(Settings(otlp_endpoint=endpoint), service="host") as telemetry:
            log = telemetry.observed(MemoryLog())
            async with asyncio.timeout(2):
                await _accepted(log)
                for number in range(50):
                    await _run(log, f"dev-{number}")
    assert (collector.requests >= 1) is bool(status) and not collector.spans


async def test_the_standard_variables_decide_about_sampling(
    collector: TraceCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    async with open_telemetry(_settings(collector), service="host") as telemetry:
        log = telemetry.observed(MemoryLog())
        task = await _accepted(log)
        with pytest.raises(AlreadyExists):
            await _accepted(log)
        assert task.traceparent and task.fingerprint() == TASK.fingerprint()
        # Whoever drives it knows that it is not sampled.
        assert task.traceparent.endswith("-00")
        async with log.journal(_driver(task, 1)) as journal:
            await journal.append(ev.ExecutionClaimed(generation=1, owner="me"))
            await journal.append(ev.ExecutionFinished(status=ev.ExecutionStatus.COMPLETED))
    assert not collector.spans


async def test_without_an_endpoint_nothing_is_loaded_and_nothing_wrapped() -> None:
    code = """
import asyncio, sys
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import open_telemetry
async def main():
    async with open_telemetry(Settings(metrics_listen=''), service='host') as telemetry:
        assert telemetry.fleet('it') == telemetry.results('it') == telemetry.repositories('it') == 'it'
        assert telemetry.stamp() == {}
        with telemetry.continuing('00-1-2-01'), telemetry.receiving('x', {}):
            pass
asyncio.run(main())
assert not {name.partition('.')[0] for name in sys.modules} & {'opentelemetry', 'prometheus_client'}
"""
    ran = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


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


async def test_an_endpoint_that_is_no_url_is_told() -> None:
    before = own_telemetry()
    with pytest.raises(InvalidRequest, match="not a URL") as fault:
        async with open_telemetry(Settings(otlp_endpoint="127.0.0.1:4318"), service="host"):
            raise AssertionError("it opened")
    assert fault.value.field == "otlp_endpoint"
    assert own_telemetry() is before


async def test_what_models_name_is_cut_and_a_stream_that_is_closed_elsewhere_is_no_fault(
    collector: TraceCollector, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_telemetry(_settings(collector), service="host") as telemetry:
        tracing = telemetry.tracing
        assert tracing is not None
        tracing.emit("n" * 100_000, start=1, end=2, attributes={"gen_ai.tool.call.id": "i" * 100_000})

        async def stream() -> AsyncIterator[int]:
            with tracing.span("watching", {}):
                yield 1

        replies = stream()
        await asyncio.create_task(anext(replies))
        await asyncio.create_task(replies.aclose())
    spans = {one.name: one for one in collector.spans}
    assert spans.keys() == {"n" * 200, "watching"}
    assert spans["n" * 200].attributes["gen_ai.tool.call.id"] == "i" * 16_384
    assert not [one for one in caplog.records if "truncating" not in one.msg]
