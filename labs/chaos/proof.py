"""What must hold at the end of a chaos run, for every execution that was accepted."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from labs.chaos.load import Accepted
from labs.chaos.model import NOTES, line
from labs.chaos.stage import Replica, Stage
from swe_ai_fleet.testing.repositories import git
from swe_ai_fleet.watching.events import verify_events

_READ_SECONDS = 60.0


@dataclass(kw_only=True)
class Proof:
    """What was found; nothing in `faults` means that everything held."""

    executions: int = 0
    completed: int = 0
    results: int = 0
    chains: int = 0
    tool_calls: int = 0
    interrupted: int = 0
    effects: int = 0
    taken_over: int = 0
    reassigned: int = 0
    recorded: int = 0
    remembered: int = 0
    recalled: int = 0
    faults: list[str] = field(default_factory=list[str])

    def expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


async def prove(stage: Stage, accepted: Sequence[Accepted], published: Sequence[dict[str, Any]]) -> Proof:
    """Look at every execution through one orchestrator or the other, and at everything that was published."""
    proof = Proof(executions=len(accepted))
    by_execution: dict[str, list[dict[str, Any]]] = {}
    for result in published:
        by_execution.setdefault(result["execution_id"], []).append(result)
    known = {one.execution_id for one in accepted}
    proof.expect(not by_execution.keys() - known, f"results of unknown executions: {by_execution.keys() - known}")
    for number, one in enumerate(accepted):
        replica = stage.replicas[number % len(stage.replicas)]
        await _prove(proof, stage, replica, one, by_execution.get(one.execution_id, []))
    return proof


async def _prove(
    proof: Proof, stage: Stage, replica: Replica, one: Accepted, published: Sequence[dict[str, Any]]
) -> None:
    events = await events_of(replica, one.execution_id)
    _audit(proof, one, events)
    _calls(proof, one, events)
    proof.recalled += sum(
        len(json.loads(event.payload_json)["context"]["recalled"])
        for event in events
        if event.type == "context_gathered"
    )
    finals = [result for result in published if result["kind"] == "execution"]
    agents = Counter(result["agent_id"] for result in published if result["kind"] != "execution")
    proof.results += len(finals)
    proof.expect(len(finals) == 1, f"{one.task_id}: {len(finals)} results were published")
    twice = [agent for agent, count in agents.items() if count > 1]
    proof.expect(not twice, f"{one.task_id}: the results of {twice} were published more than once")
    for final in finals:
        good = final["status"] == "completed"
        proof.completed += good
        proof.expect(good, f"{one.task_id}: {final['status']}: {final['error']}")
        if good:
            _work(proof, stage, one, final)
    for agent in range(16):
        told = stage.witness.told[f"{one.task_id}/{agent}"]
        proof.effects += told
        proof.expect(told <= 1, f"{one.task_id}: agent {agent} told the witness {told} times")


async def events_of(replica: Replica, execution_id: str) -> list[pb.ExecutionEvent]:
    """All events of an execution, as an orchestrator streams them."""
    card = replica.card
    async with grpc.aio.insecure_channel(card.address) as channel:
        stub = pb_grpc.OrchestratorServiceStub(channel)
        call = stub.StreamExecution(
            pb.StreamExecutionRequest(execution_id=execution_id),
            metadata=(("authorization", f"Bearer {card.token}"),),
            timeout=_READ_SECONDS,
        )
        return [event async for event in call]


def _audit(proof: Proof, one: Accepted, events: Sequence[pb.ExecutionEvent]) -> None:
    verdicts = verify_events(events)
    proof.chains += len(verdicts)
    proof.expect(bool(verdicts), f"{one.task_id}: no audit chain")
    for verdict in verdicts:
        fault = verdict.fault
        proof.expect(
            verdict.intact, f"{one.task_id}: the chain of {verdict.agent_id} breaks: {fault.reason if fault else ''}"
        )


def _calls(proof: Proof, one: Accepted, events: Sequence[pb.ExecutionEvent]) -> None:
    """Each call that a model made began at most once and succeeded at most once."""
    asked: Counter[str] = Counter()
    started: Counter[str] = Counter()
    succeeded: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for event in events:
        body = json.loads(event.payload_json)
        match event.type:
            case "model_replied":
                asked.update(call["call_id"] for call in body["reply"]["message"]["tool_calls"])
            case "tool_started":
                started[body["entry"]["call_id"]] += 1
            case "tool_finished":
                succeeded[body["entry"]["call_id"]] += body["entry"]["outcome"] == "success"
                proof.interrupted += body["entry"]["outcome"] == "interrupted"
            case "execution_claimed":
                proof.taken_over += body["generation"] > 1
            case "run_reassigned":
                proof.reassigned += 1
            case "execution_finished" | "execution_started":
                ends[event.type] += 1
            case _:
                pass
    proof.tool_calls += sum(started.values())
    for what, counts in (("asked for", asked), ("begun", started), ("carried out", succeeded), ("told", ends)):
        twice = [name for name, count in counts.items() if count > 1]
        proof.expect(not twice, f"{one.task_id}: {what} more than once: {twice}")
    proof.expect(ends["execution_finished"] == 1, f"{one.task_id}: it has no end")
    proof.expect(started.keys() <= asked.keys(), f"{one.task_id}: calls that no model made")


def _work(proof: Proof, stage: Stage, one: Accepted, final: dict[str, Any]) -> None:
    """The winner's patch and the delivered branch hold each line of one agent exactly once."""
    wanted = [sorted(line(one.task_id, agent, number) for number in range(1, one.lines + 1)) for agent in range(16)]
    added = sorted(
        text[1:] for text in final["artifacts"]["patch"].splitlines() if text.startswith("+") and text[1:2] == "c"
    )
    proof.expect(added in wanted, f"{one.task_id}: the patch adds {added}")
    if added in wanted:
        told = stage.witness.told[f"{one.task_id}/{wanted.index(added)}"]
        proof.expect(told == 1, f"{one.task_id}: the winner told the witness {told} times")
    try:
        content = git(stage.repository, "show", f"{final['artifacts']['branch']}:{NOTES}").splitlines()
    except subprocess.CalledProcessError as error:
        proof.faults.append(f"{one.task_id}: nothing was delivered: {error.stderr.decode(errors='replace').strip()}")
        return
    proof.expect(sorted(content) == sorted(["Notes", *added]), f"{one.task_id}: the branch holds {content}")
