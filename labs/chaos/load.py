"""The clients of a chaos run: they hand tasks in through either orchestrator until one answers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from labs.chaos.model import NOTES, TOOLS, description
from labs.chaos.stage import Replica, Stage
from labs.chaos.watch import Watch

_ANSWER_SECONDS = 20.0
_AGAIN_SECONDS = 0.5
_REVIEWED = 0.3
"""The share of tasks whose agents review one another."""
_REMEMBERING = 0.5
"""The share of tasks that read what others left, and leave something themselves."""
MEMORIES = "repository:chaos"
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A task that was taken on. `attempts` counts how often it had to be handed in."""

    task_id: str
    execution_id: str
    agents: int
    lines: int
    attempts: int
    remembering: bool = False


@dataclass(kw_only=True)
class Load:
    """Hands tasks in, so many at a time, and keeps what was accepted.

    Args:
        stage: Where.
        watch: Says which have ended.
        width: Tasks that have not ended, at most.
        seed: Decides the tasks and who is asked first.
    """

    stage: Stage
    watch: Watch
    width: int
    seed: int
    accepted: dict[str, Accepted] = field(default_factory=dict[str, Accepted])

    @property
    def told(self) -> set[str]:
        """The executions whose result subscribers have heard."""
        return {one.execution_id for one in self.watch.executions.values() if one.told_at}

    @property
    def ended(self) -> int:
        told = self.told
        return sum(one.execution_id in told for one in self.accepted.values())

    async def run(self, first: int, count: int) -> None:
        """Hand `count` tasks in and wait until each has ended."""
        room = asyncio.Semaphore(self.width)
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + count):
                await room.acquire()
                group.create_task(self._one(number, room))

    async def _one(self, number: int, room: asyncio.Semaphore) -> None:
        dice = random.Random(f"{self.seed}/{number}")
        agents, lines, reviewed = dice.choice((1, 2, 2)), dice.choice((2, 3, 3)), dice.random() < _REVIEWED
        task_id = f"chaos-{number:03}"
        remembering = dice.random() < _REMEMBERING
        task = self._request(task_id, agents, lines, reviewed=reviewed, remembering=remembering)
        request = pb.SubmitTaskRequest(orchestrate=task)
        execution_id, attempts = await self._hand_in(request, dice)
        self.accepted[task_id] = Accepted(
            task_id=task_id,
            execution_id=execution_id,
            agents=agents,
            lines=lines,
            attempts=attempts,
            remembering=remembering,
        )
        await self.watch.until(
            lambda: (seen := self.watch.executions.get(execution_id)) is not None and seen.told_at > 0
        )
        room.release()

    async def _hand_in(self, request: pb.SubmitTaskRequest, dice: random.Random) -> tuple[str, int]:
        attempts = 0
        while True:
            attempts += 1
            replica = dice.choice(self.stage.replicas)
            try:
                return await submit(replica, request), attempts
            except grpc.aio.AioRpcError as error:
                if error.code() not in _PASSING:
                    raise
            except FileNotFoundError:
                pass  # it has never served, so there is no token yet
            await asyncio.sleep(_AGAIN_SECONDS)

    def _request(
        self, task_id: str, agents: int, lines: int, *, reviewed: bool, remembering: bool
    ) -> pb.OrchestrateRequest:
        written = f'test "$(wc -l < {NOTES})" -eq {1 + lines} && test "$(sort {NOTES} | uniq -d | wc -l)" -eq 0'
        return pb.OrchestrateRequest(
            task_id=task_id,
            task_description=description(task_id, lines, self.stage.witness.url),
            repo=pb.RepoRef(path=str(self.stage.repository)),
            options=pb.OrchestratorOptions(num_agents=agents, enable_peer_review=reviewed),
            tools=(*TOOLS, "remember") if remembering else TOOLS,
            memory=pb.MemoryOptions(read=True, write=True, namespaces=[MEMORIES]) if remembering else None,
            constraints=pb.TaskConstraints(
                max_iterations=40, checks=[pb.CheckSpec(name="every line once", command=written)]
            ),
        )


async def submit(replica: Replica, request: pb.SubmitTaskRequest) -> str:
    """The execution id that one orchestrator gives a task. Raises AioRpcError, FileNotFoundError."""
    card = replica.card
    async with grpc.aio.insecure_channel(card.address) as channel:
        stub = pb_grpc.OrchestratorServiceStub(channel)
        metadata = (("authorization", f"Bearer {card.token}"),)
        reply = await stub.SubmitTask(request, metadata=metadata, timeout=_ANSWER_SECONDS)
    return reply.execution_id
