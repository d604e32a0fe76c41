"""`make harnesses`: agents of others beside ours, in a real fleet, against the scripted model; one table.

Three tasks: one that an agent of ours and two harnesses solve, each of which knocks at the network; one whose harness
is killed in the middle by what its model has it do; one in which a person refuses what a harness asks for.
HARNESSES_CACHE is where installations stay, ONLY="solve ask" takes some of the tasks. Ends with 1 where something went
another way than it should.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from labs.harnesses.installing import CACHE, harnesses
from services.orchestrator.main import open_fleet
from swe_ai_fleet.agents.external_agent import HARNESS
from swe_ai_fleet.cli.client import FleetClient, connect
from swe_ai_fleet.cli.findings import Health
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.domain.event import RunFinished, RunStarted, ToolFinished
from swe_ai_fleet.domain.tool import PolicyDecision
from swe_ai_fleet.extensions.acp.harness import examine
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, ScriptRequest, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.watching.events import report, stored_event, verify_events
from tests.scripts import HELLO_FILES

SOLVE, DIE, ASK = "[solve]", "[die]", "[ask]"
KNOCK = "python3 -c \"import socket; socket.create_connection(('198.51.100.1', 80), 3); print('open')\" 2>&1 | tail -1"
DONE = Turn(content="Added hello_world, and knocked at the network.")
PERSON = "grace"


def offering(tool: str) -> Any:
    """Whether a request offers a tool: each agent has names of its own."""

    def offers(request: ScriptRequest) -> bool:
        return any(one.get("function", {}).get("name") == tool for one in request.payload.get("tools") or ())

    return offers


def code(author: str) -> str:
    """What solves the task; equal patches would be one candidate."""
    return f"{HELLO_FILES['utils.py']}\n\ndef hello_world():  # {author}\n    return 'Hello, World!'\n"


def calling(*calls: tuple[str, dict[str, object]]) -> tuple[Turn, ...]:
    return tuple(Turn(content="I go on.", tool_calls=(call,)) for call in calls)


def shell_of_opencode(command: str) -> tuple[str, dict[str, object]]:
    return "bash", {"command": command, "description": "a command"}


SCRIPT = Script(
    conversations=(
        Conversation(
            match=SOLVE,
            predicate=offering("final_answer"),
            turns=(
                *calling(
                    ("files_write_file", {"path": "utils.py", "content": code("ours")}),
                    ("shell_run_command", {"command": KNOCK}),
                ),
                Turn(tool_calls=(("final_answer", {"result": DONE.content}),)),
            ),
        ),
        Conversation(
            match=SOLVE,
            predicate=offering("bash"),
            turns=(
                *calling(
                    ("read", {"filePath": "/workspace/utils.py"}),
                    ("write", {"filePath": "/workspace/utils.py", "content": code("opencode")}),
                    shell_of_opencode(KNOCK),
                ),
                DONE,
            ),
        ),
        Conversation(
            match=SOLVE,
            predicate=offering("run_shell_command"),
            turns=(
                *calling(
                    ("read_file", {"file_path": "/workspace/utils.py"}),
                    ("write_file", {"file_path": "/workspace/utils.py", "content": code("qwen-code")}),
                    ("run_shell_command", {"command": KNOCK, "is_background": False}),
                ),
                DONE,
            ),
        ),
        Conversation(
            match=DIE,
            predicate=offering("bash"),
            turns=(
                *calling(
                    ("write", {"filePath": "/workspace/half.txt", "content": "half\n"}),
                    shell_of_opencode("kill -9 $PPID"),
                ),
                DONE,
            ),
        ),
        Conversation(
            match=ASK,
            predicate=offering("bash"),
            turns=(*calling(shell_of_opencode("rm -rf /workspace/test_utils.py")), Turn(content="I was not let.")),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is known of one candidate.

    `own` are audit entries by the agent's word, `fleet` those of the fleet's own tools; `calls` are the model's.
    """

    task: str
    agent: str
    model: str
    stop: str
    files: str
    own: int
    refused: int
    fleet: int
    calls: int
    tokens: int
    network: str
    audited: bool
    verdict: str
    seconds: float
    error: str


async def solved(client: FleetClient, order: Order) -> list[Row]:
    """A task to its end, what waits for a person refused, and a row for each candidate."""
    began = time.monotonic()
    accepted = await client.submit(order.request())
    resolved: set[str] = set()
    while True:
        execution = await client.execution(accepted.execution_id)
        if execution.status not in (pb.DELIBERATION_STATUS_PENDING, pb.DELIBERATION_STATUS_IN_PROGRESS):
            for request in execution.pending_approvals:
                if request.approval_id not in resolved:
                    resolved.add(request.approval_id)
                    refusal = pb.ResolveApprovalRequest(
                        execution_id=accepted.execution_id,
                        approval_id=request.approval_id,
                        decision=pb.APPROVAL_DECISION_REJECTED,
                        approver=PERSON,
                        comment="the tests stay",
                    )
                    await client.resolve(refusal)
            if execution.status != pb.DELIBERATION_STATUS_AWAITING_APPROVAL:
                break
        await asyncio.sleep(0.2)
    seconds = time.monotonic() - began
    events = [one async for one in client.recorded(execution)]
    for event in events:
        if event.type in ("run_lost", "run_stopped", "run_reassigned"):
            print(f"{order.description}: {event.type}: {event.payload_json}", flush=True)
    intact = bool(report(verify_events(events))["intact"])
    return [_row(order, result, events, intact=intact, seconds=seconds) for result in execution.results]


def _row(
    order: Order, result: pb.DeliberationResult, events: Sequence[pb.ExecutionEvent], *, intact: bool, seconds: float
) -> Row:
    agent = result.candidate_id
    told = [one for one in map(stored_event, events) if one is not None]
    bodies = [one.event.body for one in told if one.event.agent_id == agent]
    ended = [body for body in bodies if isinstance(body, ToolFinished)]
    finished = next(body for body in reversed(bodies) if isinstance(body, RunFinished))
    knocks = [body.result.content or body.result.error for body in ended if KNOCK[:40] in repr(body.entry.arguments)]
    knocked = [line for text in knocks for line in text.splitlines() if "OSError" in line or line == "open"]
    own = [body for body in ended if body.entry.tool == HARNESS]
    return Row(
        task=order.description.partition("]")[0].strip("["),
        agent=agent,
        model=next((body.model for body in bodies if isinstance(body, RunStarted)), ""),
        stop=str(finished.stop_reason),
        files=" ".join(finished.artifacts.files_changed),
        own=len(own),
        refused=sum(body.entry.decision is PolicyDecision.REFUSED for body in ended),
        fleet=len(ended) - len(own),
        calls=finished.usage.model_calls,
        tokens=finished.usage.total_tokens,
        network=knocked[-1][-60:] if knocked else "",
        audited=intact,
        verdict=pb.EvidenceVerdict.Name(result.verdict).removeprefix("EVIDENCE_VERDICT_").lower(),
        seconds=seconds,
        error=finished.error,
    )


def table(rows: Sequence[Row]) -> Table:
    made = Table(title="Agents of others beside ours")
    names = [field.name for field in fields(Row)]
    for name in names:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(
            *(f"{value:.1f}" if isinstance(value := getattr(row, name), float) else str(value) for name in names)
        )
    return made


def check(rows: Sequence[Row], *, whole: bool) -> list[str]:
    """What went another way than it should; `whole` says that no task was left out."""
    wrong = [f"{row.task} {row.agent}: its audit chain is broken" for row in rows if not row.audited]
    for row in rows:
        name = f"{row.task} {row.agent} ({row.model})"
        if row.task == "solve":
            if row.files != "utils.py" or row.stop != "final_answer" or row.error:
                wrong.append(f"{name}: {row.stop}, {row.files or 'nothing'} changed, {row.error}")
            if "unreachable" not in row.network:
                wrong.append(f"{name}: its network is not shown closed: {row.network!r}")
        if row.task == "die" and ("ended with exit code" not in row.error or row.files != "half.txt"):
            wrong.append(f"{name}: {row.error or row.stop}, {row.files or 'nothing'} left")
        if row.task == "ask" and (row.files or not row.refused):
            wrong.append(f"{name}: {row.files or 'nothing'} changed, {row.refused} refusals")
    if whole and [row.task for row in rows] != ["solve"] * 3 + ["die", "ask"]:
        wrong.append(f"{len(rows)} candidates")
    return wrong


async def main() -> int:
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    cache = Path(os.environ.get("HARNESSES_CACHE") or CACHE)
    installed = await asyncio.to_thread(harnesses, cache)
    only = os.environ.get("ONLY", "").split()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fleet-harnesses-") as name:
        directory = Path(name)
        async with ScriptedModelServer(SCRIPT, model="scripted") as model:
            settings = Settings(
                home=directory / "home",
                model_url=model.url,
                model="scripted",
                listen="127.0.0.1:0",
                metrics_listen="127.0.0.1:0",
                http_listen="off",
                harnesses=installed,
            )
            doctor = await examine(settings)
            for finding in doctor:
                print(f"{finding.part}: {finding.state}: {finding.cause}", flush=True)
            async with open_fleet(settings) as running, connect(running.address, running.token) as client:
                orders = (
                    (SOLVE, ("fleet", "acp:opencode", "acp:qwen-code"), ""),
                    (DIE, ("acp:opencode",), ""),
                    (ASK, ("acp:opencode",), "risky"),
                )
                for marker, seats, approve in orders:
                    repository = make_repository(directory / marker.strip("[]"), HELLO_FILES)
                    order = Order(
                        description=f"{marker} Add hello_world() to utils.py",
                        repo=str(repository),
                        seats=seats,
                        rounds=0,
                        approve=approve,
                        timeout_seconds=240,
                    )
                    if not only or marker.strip("[]") in only:
                        rows += await solved(client, order)
    Console(width=220).print(table(rows))
    wrong = [f"{one.part}: {one.cause}" for one in doctor if one.state is not Health.OK] + check(rows, whole=not only)
    for line in wrong:
        print(f"WRONG: {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
