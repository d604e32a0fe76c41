"""The people of a soak: each does one thing after the other, so many at once, until the time is over."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fleet.conversation.v1 import conversation_pb2 as chats
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from fleet.planning.v1 import planning_pb2 as plans
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from fleet.workflow.v1 import workflow_pb2 as flows
from fleet.workflow.v1.workflow_pb2_grpc import WorkflowServiceStub
from labs.soak.client import Fleet
from labs.soak.ledger import Ledger
from labs.soak.model import BIG, CHAT, FLOW, PROPOSE, SLEEP, WRITE
from tests.plan_script import PLAN_GOAL

_CHECK = pb.CheckSpec(name="a line more", command="test $(wc -l < notes.txt) -ge 2")
_WORKFLOW = f"""
name: soak
nodes:
  - {{id: one, type: agent, query: "{FLOW} one"}}
  - {{id: two, type: agent, query: "{FLOW} two"}}
edges:
  - {{source: one, target: two}}
"""
CUT_OFF = "its process ended while the approved approach was being carried out"
_SESSIONS = 3
"""Chats that each returns to; one in ten messages ends its chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A task that the fleet took on, and what its end may be."""

    task_id: str
    execution_id: str
    ends: frozenset[str]


@dataclass(kw_only=True)
class Load:
    """So many people at once.

    Args:
        tenant: Whose people they are.
        fleet: Whom they ask.
        ledger: Says what the log has.
        seed: Decides who does what when.
        width: How many there are.
        pace: Seconds from one thing that somebody does to their next, where it does not take longer: what is asked of
            the fleet then does not depend on how fast it is, and what it holds can be compared over time.
    """

    tenant: str
    fleet: Fleet
    ledger: Ledger
    seed: int
    width: int
    pace: float
    accepted: list[Accepted] = field(default_factory=list[Accepted])
    done: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    _number: int = 0

    async def run(self, seconds: float) -> None:
        """Keep everybody busy; who has begun something by then still ends it."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for person in range(self.width):
                group.create_task(self._person(random.Random(f"{self.seed}/{self.tenant}/{person}"), person, until))

    async def _person(self, dice: random.Random, person: int, until: float) -> None:
        doings: list[tuple[int, str, Callable[[random.Random, int], Awaitable[None]]]] = [
            (5, "deliberation", self._deliberation),
            (4, "orchestration", self._orchestration),
            (2, "cancelled", self._cancelled),
            (3, "decided", self._decided),
            (2, "workflow", self._workflow),
            (4, "chat", self._chat),
            (2, "plan", self._plan),
            (6, "looked around", self._look),
        ]
        while time.monotonic() < until:
            began = time.monotonic()
            (chosen,) = dice.choices(doings, weights=[one[0] for one in doings])
            try:
                await chosen[2](dice, person)
            except Exception as error:  # noqa: BLE001 - the edge of a person's doing: told, and fails the run
                self.faults.append(f"{chosen[1]}: {type(error).__name__}: {str(error)[:400]}")
                await asyncio.sleep(1.0)
            self.done[chosen[1]] += 1
            await asyncio.sleep(max(0.0, began + self.pace - time.monotonic()))

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"soak-{self.tenant}-{kind}-{self._number:05}"

    def _deliberate(self, words: str, kind: str, agents: int, **fields: object) -> pb.DeliberateRequest:
        task_id = self._name(kind)
        return pb.DeliberateRequest(
            task_id=task_id,
            task_description=f"{words} Append a line to notes.txt. [{task_id}]",
            repo=pb.RepoRef(path=str(self.fleet.soaked.repositories[self.tenant])),
            num_agents=agents,
            constraints=pb.TaskConstraints(max_iterations=12, checks=[_CHECK]),
            **fields,  # type: ignore[arg-type]
        )

    async def _submit(self, request: pb.SubmitTaskRequest, *ends: str) -> str:
        reply = await self.fleet.unary("submit", lambda c: OrchestratorServiceStub(c).SubmitTask, request)
        self.accepted.append(
            Accepted(task_id=reply.task_id, execution_id=reply.execution_id, ends=frozenset(ends or ("completed",)))
        )
        return reply.execution_id

    async def _ended(self, what: str, execution_id: str, began: float) -> None:
        await self.ledger.until(execution_id, lambda one: one.results > 0)
        self.fleet.took(what, began)

    async def _deliberation(self, dice: random.Random, person: int) -> None:
        words = BIG if dice.random() < 0.25 else WRITE
        began = time.perf_counter()
        request = self._deliberate(words, "deliberate", dice.choice((1, 2)), enable_peer_review=dice.random() < 0.3)
        execution_id = await self._submit(pb.SubmitTaskRequest(deliberate=request))
        if dice.random() < 0.6:
            events = await self.fleet.watch_grpc(execution_id)
            assert events, "a watcher saw no event"
            self.done["bytes fetched"] += max(0, await self.fleet.artifact(execution_id, events))
        else:
            assert await self.fleet.watch_sse(execution_id), "a watcher saw no event"
        await self._ended("deliberation", execution_id, began)

    async def _orchestration(self, dice: random.Random, person: int) -> None:
        task_id = self._name("orchestrate")
        request = pb.OrchestrateRequest(
            task_id=task_id,
            task_description=f"{WRITE} Append a line to notes.txt. [{task_id}]",
            repo=pb.RepoRef(path=str(self.fleet.soaked.repositories[self.tenant])),
            options=pb.OrchestratorOptions(num_agents=dice.choice((1, 2)), enable_peer_review=False),
            constraints=pb.TaskConstraints(max_iterations=12, checks=[_CHECK]),
        )
        began = time.perf_counter()
        execution_id = await self._submit(pb.SubmitTaskRequest(orchestrate=request))
        assert await self.fleet.watch_websocket(execution_id), "a watcher saw no message"
        await self._ended("orchestration", execution_id, began)

    async def _cancelled(self, dice: random.Random, person: int) -> None:
        request = self._deliberate(SLEEP, "cancel", 1)
        execution_id = await self._submit(pb.SubmitTaskRequest(deliberate=request), "cancelled")
        account = await self.ledger.until(execution_id, lambda one: one.tools > 0 or one.ends > 0)
        assert not account.ends, f"{request.task_id} ended before it was cancelled: {account.status}"
        await asyncio.sleep(dice.uniform(0.0, 1.0))
        cancel = pb.CancelExecutionRequest(execution_id=execution_id, reason="soak")
        await self.fleet.unary("cancel", lambda c: OrchestratorServiceStub(c).CancelExecution, cancel)
        await self.ledger.until(execution_id, lambda one: one.results > 0)

    async def _decided(self, dice: random.Random, person: int) -> None:
        word = dice.choice(("APPROVED", "APPROVED", "REJECTED"))
        request = self._deliberate(PROPOSE, "decide", 1, approval=pb.APPROVAL_POLICY_PLAN)
        ends = "completed" if word == "APPROVED" else "rejected"
        execution_id = await self._submit(pb.SubmitTaskRequest(deliberate=request), ends)
        account = await self.ledger.until(execution_id, lambda one: one.asked > 0 or one.ends > 0)
        assert not account.ends, f"{request.task_id} ended before it asked: {account.status}"
        resolve = pb.ResolveApprovalRequest(execution_id=execution_id, decision=f"APPROVAL_DECISION_{word}")
        began = time.perf_counter()
        await self.fleet.unary("decide", lambda c: OrchestratorServiceStub(c).ResolveApproval, resolve, approves=True)
        await self._ended("decided to end", execution_id, began)

    async def _workflow(self, dice: random.Random, person: int) -> None:
        request = flows.RunWorkflowRequest(
            task_id=self._name("flow"),
            definition=_WORKFLOW,
            repo=pb.RepoRef(path=str(self.fleet.soaked.repositories[self.tenant])),
        )
        began = time.perf_counter()
        reply = await self.fleet.unary("run workflow", lambda c: WorkflowServiceStub(c).RunWorkflow, request)
        self.accepted.append(
            Accepted(task_id=reply.task_id, execution_id=reply.execution_id, ends=frozenset(["completed"]))
        )
        await self._ended("workflow", reply.execution_id, began)

    async def _chat(self, dice: random.Random, person: int) -> None:
        session = f"soak-{person}-{dice.randrange(_SESSIONS)}"
        message = chats.SendRequest(session_id=session, text=f"So, {CHAT}?", message_id=self._name("message"))
        assert await self.fleet.chat(message), "a chat gave no answer"
        if dice.random() < 0.1:
            end = chats.EndConversationRequest(session_id=session)
            await self.fleet.unary("end chat", lambda c: ConversationServiceStub(c).EndConversation, end)

    async def _plan(self, dice: random.Random, person: int) -> None:
        word = dice.choice(("approved", "approved", "rejected"))
        while not await self._planned(word):
            # A kill cut it off: nothing is done twice without a person, who sets the goal again.
            self.done["plan cut off"] += 1

    async def _planned(self, word: str) -> bool:
        """Whether a plan that was decided about so came to its end."""
        session = self._name("plan")
        begin = plans.ExecutePlanRequest(goal=PLAN_GOAL, session_id=session)
        proposed = await self.fleet.unary("plan", lambda c: PlanningServiceStub(c).ExecutePlan, begin)
        assert proposed.status == "awaiting_approval", f"{session}: {proposed.status} {proposed.error}"
        decide = plans.ApproveApproachRequest(session_id=session, decision=word)
        await self.fleet.unary("decide plan", lambda c: PlanningServiceStub(c).ApproveApproach, decide, approves=True)
        if word != "approved":
            return True
        asked_again = self.fleet.again["carry plan out"]
        go_on = plans.ContinuePlanRequest(session_id=session)
        result = await self.fleet.unary("carry plan out", lambda c: PlanningServiceStub(c).ContinuePlan, go_on)
        cut_off = CUT_OFF in result.error and self.fleet.again["carry plan out"] > asked_again
        assert result.status == "completed" or cut_off, f"{session}: {result.status} {result.error}"
        return not cut_off

    async def _look(self, dice: random.Random, person: int) -> None:
        await self.fleet.unary(
            "list", lambda c: OrchestratorServiceStub(c).ListExecutions, pb.ListExecutionsRequest(page_size=50)
        )
        await self.fleet.unary("status", lambda c: OrchestratorServiceStub(c).GetStatus, pb.GetStatusRequest())
        await self.fleet.unary("metrics", lambda c: OrchestratorServiceStub(c).GetMetrics, pb.GetMetricsRequest())
        await asyncio.sleep(dice.uniform(0.2, 1.5))
