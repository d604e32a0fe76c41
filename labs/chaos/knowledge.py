"""What ended executions must have left: their record, once, their outcome, their lessons where those were wanted."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence

import grpc.aio

from fleet.context.v1 import context_pb2 as pb
from fleet.context.v1 import context_pb2_grpc as pb_grpc
from labs.chaos.load import MEMORIES, Accepted
from labs.chaos.model import description, lesson
from labs.chaos.proof import Proof
from labs.chaos.stage import Replica, Stage
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import CONTEXT_CHANGES
from swe_ai_fleet.adapters.jetstream.reader import messages

_RECORDED_SECONDS = 30.0
_CALL_SECONDS = 30.0
_LOOK_SECONDS = 0.25
_RECALLED = 100


async def prove_knowledge(proof: Proof, stage: Stage, connection: Connection, accepted: Sequence[Accepted]) -> None:
    """Look at the log of the context, and ask the context service of one orchestrator or the other."""
    wanted = {one.execution_id: one.task_id for one in accepted}
    recorded = await _recorded(connection, set(wanted))
    proof.recorded = len(recorded)
    missing = [task for execution, task in wanted.items() if not recorded[execution]]
    proof.expect(not missing, f"not recorded in the context: {missing}")
    twice = {wanted.get(execution, execution): count for execution, count in recorded.items() if count > 1}
    proof.expect(not twice, f"recorded in the context more than once: {twice}")
    strangers = recorded.keys() - wanted.keys()
    proof.expect(not strangers, f"records of unknown executions: {strangers}")
    for number, one in enumerate(accepted):
        await _knows(proof, stage, stage.replicas[number % len(stage.replicas)], one)


async def _recorded(connection: Connection, wanted: set[str]) -> Counter[str]:
    """How often each execution's work stands in the log, once all are there or their time is over."""
    until = time.monotonic() + _RECORDED_SECONDS
    while True:
        found: Counter[str] = Counter()
        async for message in messages(
            connection, CONTEXT_CHANGES, "context.work.>", follow=False, timeout=_CALL_SECONDS
        ):
            if message is not None:
                found[json.loads(message.data)["body"]["record"]["execution_id"]] += 1
        if found.keys() >= wanted or time.monotonic() > until:
            return found
        await asyncio.sleep(_LOOK_SECONDS)


async def _knows(proof: Proof, stage: Stage, replica: Replica, one: Accepted) -> None:
    """The graph leads from the task to its execution; its outcome and its lessons are there once."""
    name = f"execution:{one.execution_id}"
    async with grpc.aio.insecure_channel(replica.context) as channel:
        stub = pb_grpc.ContextServiceStub(channel)
        metadata = (("authorization", f"Bearer {replica.card.token}"),)
        try:
            around = await stub.GetGraphRelationships(
                pb.GetGraphRelationshipsRequest(node=name), metadata=metadata, timeout=_CALL_SECONDS
            )
            # Rated or not, an outcome that is not there cannot be.
            rating = pb.Rating(subject_id=one.execution_id, rating=5)
            rated = await stub.RecordOutcome(
                pb.RecordOutcomeRequest(rating=rating), metadata=metadata, timeout=_CALL_SECONDS
            )
            found = [
                memory.memory
                for query in (lesson(one.task_id, 0), description(one.task_id, one.lines, stage.witness.url))
                for memory in (
                    await stub.Recall(
                        pb.RecallRequest(query=query, namespaces=[MEMORIES], limit=_RECALLED),
                        metadata=metadata,
                        timeout=_CALL_SECONDS,
                    )
                ).recollections
            ]
        except grpc.aio.AioRpcError as error:
            proof.faults.append(f"{one.task_id}: the context service of {replica.name} says: {error.details()}")
            return
    targets = {(relation.source, relation.target) for relation in around.relations}
    proof.expect((name, f"task:{one.task_id}") in targets, f"{one.task_id}: its record is not linked with its task")
    proof.expect(rated.outcome.success, f"{one.task_id}: its outcome says that it failed: {rated.outcome.status}")
    left = {memory.memory_id: memory for memory in found if memory.source == name}.values()
    facts = [memory.text for memory in left if memory.kind == pb.MEMORY_KIND_FACT]
    outcomes = [memory.text for memory in left if memory.kind == pb.MEMORY_KIND_OUTCOME]
    proof.remembered += len(facts)
    if not one.remembering:
        proof.expect(not left, f"{one.task_id}: it was not to remember anything: {[*facts, *outcomes]}")
        return
    proof.expect(len(outcomes) == 1, f"{one.task_id}: how it went is remembered {len(outcomes)} times")
    lessons = [lesson(one.task_id, agent) for agent in range(16)]
    proof.expect(len(facts) == 1 and facts[0] in lessons, f"{one.task_id}: its lesson is not what is left: {facts}")
