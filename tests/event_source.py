"""A gRPC server that has executions' events and streams them as the orchestrator does, and events to fill it with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, SystemMessage, ToolCall
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from tests.candidates import AuditChain, a_candidate

STRIDE = 3
"""Between the numbers of an execution's events: the log has others' in between."""
_OUTPUT = "def test_parser():\n    assert parse('1 + 2') == 3\n" * 8


@dataclass(kw_only=True)
class EventSource(pb_grpc.OrchestratorServiceServicer):
    """Executions by id; `add` tells everybody who streams one of them.

    `streams` is how many stream now, `opened` how many ever did.
    """

    executions: dict[str, list[pb.ExecutionEvent]] = field(default_factory=dict[str, list[pb.ExecutionEvent]])
    streams: int = 0
    opened: int = 0
    ends_early: bool = False
    """Ends the first stream after one event, as if there were no more."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, *events: pb.ExecutionEvent) -> None:
        """Store events; those without a number are told to who listens and forgotten."""
        for event in events:
            self.executions.setdefault(event.execution_id, []).append(event)
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    async def StreamExecution(
        self, request: pb.StreamExecutionRequest, context: Any
    ) -> AsyncIterator[pb.ExecutionEvent]:
        if request.execution_id not in self.executions:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such execution")
        early = self.ends_early and not self.opened
        self.streams, self.opened = self.streams + 1, self.opened + 1
        events, position = self.executions[request.execution_id], 0
        try:
            while True:
                for event in events[position:]:
                    position += 1
                    if event.sequence >= request.from_sequence and (event.sequence or request.include_text):
                        yield event
                    if event.type == "execution_finished" or early:
                        return
                if position == len(events):
                    await self._changed.wait()
        finally:
            self.streams -= 1

    async def GetExecution(self, request: pb.GetExecutionRequest, context: Any) -> pb.GetExecutionResponse:
        events = self.executions.get(request.execution_id)
        if events is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such execution")
            raise AssertionError
        last = max(event.sequence for event in events)
        return pb.GetExecutionResponse(execution=pb.Execution(execution_id=request.execution_id, last_sequence=last))


@asynccontextmanager
async def serving(source: EventSource, port: int = 0) -> AsyncGenerator[int]:
    """Serve it at a port of the loopback; what streams when the context ends is cut off."""
    server = cast("Any", grpc.aio).server()
    cast("Any", pb_grpc).add_OrchestratorServiceServicer_to_server(source, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


def numbered(execution_id: str, told: Sequence[tuple[str, ev.EventBody]], *, first: int = 1) -> list[pb.ExecutionEvent]:
    """Bodies and who says them, as stored events that follow each other."""
    return [
        pb.ExecutionEvent(
            sequence=1 + STRIDE * (number - 1),
            event_id=f"{execution_id}/{agent_id}/1/{number}",
            execution_id=execution_id,
            task_id="t",
            agent_id=agent_id,
            type=body.type,
            at_ms=int(time.time() * 1000),
            payload_json=to_json(body).decode(),
        )
        for number, (agent_id, body) in enumerate(told, start=first)
    ]


def a_deliberation(*, agents: int = 3, steps: int = 20, output: str = _OUTPUT) -> list[tuple[str, ev.EventBody]]:
    """What a deliberation leaves in the log, its agents' events mixed; each of their tools prints `output`."""
    names = [f"agent-dev-{number}" for number in range(1, agents + 1)]
    runs = [_run(name, steps, output) for name in names]
    task = Task(
        task_id="t",
        kind=TaskKind.DELIBERATE,
        description="Make the parser take sums.",
        repo=RepoRef(location="/repository"),
        num_agents=agents,
        rounds=0,
    )
    pinned = PinnedRepository(tenant="default", location="r", commit="c" * 40)
    return [
        ("_", ev.ExecutionStarted(task=task, repository=pinned, fingerprint="f")),
        ("_", ev.ExecutionClaimed(generation=1, owner="orchestrator")),
        *(event for together in zip(*runs, strict=True) for event in together),
        ("_", ev.CandidatesRanked(ranking=(), winner_id=names[0])),
        (
            "_",
            ev.ExecutionFinished(status=ev.ExecutionStatus.COMPLETED, winner_id=names[0], usage=Usage(), duration_ms=9),
        ),
    ]


def _run(agent_id: str, steps: int, output: str) -> list[tuple[str, ev.EventBody]]:
    bodies: list[ev.EventBody] = [
        ev.RunClaimed(generation=1, host="host"),
        ev.RunStarted(
            role="DEV", model="m", messages=(SystemMessage(content="You mend."),), tools=("files_read_file",)
        ),
    ]
    chain = AuditChain()
    who = {"at": "2026-01-01T00:00:00+00:00", "execution_id": "e", "agent_id": agent_id}
    what = {"tool": "files", "operation": "read_file", "arguments": {"path": "parser.py"}}
    for step in range(1, steps + 1):
        call = ToolCall(call_id=f"c{step}", model_call_id="", name="files_read_file", arguments='{"path": "parser.py"}')
        reply = ModelReply(
            message=AssistantMessage(content="I look at the parser.", tool_calls=(call,)),
            finish_reason="tool_calls",
            usage=Usage(prompt_tokens=900, completion_tokens=40, model_calls=1),
        )
        bodies.append(ev.ModelReplied(step=step, reply=reply, duration_ms=500))
        result = ToolResult(success=True, operation="files_read_file", content=output)
        bodies += chain.call(result, call_id=call.call_id, **who, **what)
    ended = {"stop_reason": StopReason.FINAL_ANSWER, "usage": Usage(), "audit_head": chain.head}
    bodies.append(ev.RunFinished(artifacts=Artifacts(), **ended))
    candidate = a_candidate(agent_id, summary="Done.", artifacts=Artifacts(), **ended)
    return [*((agent_id, body) for body in bodies), ("_", ev.CandidateSubmitted(candidate=candidate))]
