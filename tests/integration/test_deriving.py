"""A planner splits a task: a scripted model over HTTP, the log in memory, a real clone where it looks at one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc, service_of
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.deriving import DeriveRun
from swe_ai_fleet.agents.run_deps import RunDeps, RunRecorder
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.budget import Prices
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ModelReplied, RunFinished
from swe_ai_fleet.domain.run import fold_run
from swe_ai_fleet.domain.subtask import Derivation, Subtask
from swe_ai_fleet.domain.task import RepoRef, Role, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.derivations import (
    Derivations,
    PlanningEvents,
)
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from swe_ai_fleet.tools.secrets import Secrets
from tests.gateway_house import ready
from tests.orchestrator_service import field_named, refusal, servicer_of
from tests.recorded_runs import cut
from tests.scripted_fleet import ScriptedFleet, execution_deps
from tests.scripted_workspaces import ScriptedWorkspaces
from tests.tables import table

TASK = Task(task_id="t", kind=TaskKind.ORCHESTRATE, description="Build it", repo=RepoRef(location="/srv/app"))
SECRET = "hunter2-of-the-fleet"
ASSIGNMENT = DeriveAssignment(execution_id=TASK.execution_id, agent_id="planner", task=TASK)


def said(*subtasks: dict[str, Any]) -> Turn:
    return Turn(content=json.dumps({"subtasks": list(subtasks), "reasoning": "so"}))


def one(name: object, *depends_on: str, **more: object) -> dict[str, Any]:
    return {"id": name, "description": f"Do {name}", "depends_on": list(depends_on), **more}


class Planner:
    def __init__(self, server: ScriptedModelServer, model: OpenAIChatModel) -> None:
        self.server = server
        self.log = MemoryLog()
        deps = RunDeps(models={"": model}, mask=Secrets([SECRET]), prices={"*": Prices(prompt=1.0, completion=1.0)})
        self.run = DeriveRun(recorder=RunRecorder(deps=deps, log=self.log, blobs=self.log))

    def resumed(self, log: MemoryLog) -> None:
        """Another process finds this log."""
        self.log = log
        self.run = DeriveRun(recorder=replace(self.run.recorder, log=log, blobs=log))

    @property
    def replies(self) -> list[int]:
        return [event.body.step for event in self.log.events if isinstance(event.body, ModelReplied)]

    async def __call__(self, **changes: Any):
        return await self.run.run(replace(ASSIGNMENT, **changes), None)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests that are no probes."""
        return [body for body in self.server.bodies if str(body["messages"][0]["content"]).startswith("You split")]

    @property
    def prompts(self) -> list[str]:
        return ["\n".join(str(message["content"]) for message in body["messages"]) for body in self.asked]

    @property
    def ends(self) -> list[RunFinished]:
        return [event.body for event in self.log.events if isinstance(event.body, RunFinished)]


@asynccontextmanager
async def planner(*turns: Turn | Failure) -> AsyncGenerator[Planner]:
    async with (
        ScriptedModelServer(Script.of(*turns), keep=20) as server,
        OpenAIChatModel(base_url=server.url, model="scripted") as model,
    ):
        yield Planner(server, model)


def shape(derivation: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(subtask.subtask_id, subtask.dependencies) for subtask in derivation.subtasks]


async def test_a_graph_comes_out_dependencies_first_under_ids_of_ours() -> None:
    paths = ["./src/cli/", "/etc/passwd", "../x"]
    cli = one("The CLI!", "parser", "the lexer", role="devops", priority="7", paths=paths)
    answer = said(cli, one("parser", "the lexer", role="QA"), one("the lexer", priority=99), one(4))
    async with planner(answer) as plan:
        derivation = await plan()
    needs = {"the-lexer": (), "parser": ("the-lexer",), "the-cli": ("parser", "the-lexer"), "4": ()}
    assert shape(derivation) == list(needs.items())
    lexer, parser, cli, _ = derivation.subtasks
    assert (lexer.role, parser.role, cli.role) == (Role.DEV, Role.QA, Role.DEVOPS)
    assert (lexer.priority, cli.priority, cli.allowed_paths) == (9, 7, ("src/cli/**",))
    assert derivation.usage.model_calls == 1 and derivation.usage.cost > 0
    assert plan.ends[0].usage == derivation.usage


@table(
    ("first", "reason"),
    [
        (said(one("a", "b"), one("b", "a")), "cycle: 'a' -> 'b' -> 'a'"),
        (said(one("a", "nobody")), "'a' depends on 'nobody'"),
        (said(one("a", role="WIZARD")), "unknown role 'WIZARD'"),
        (Turn(content="I would rather not."), "no JSON object"),
    ],
)
async def test_what_is_wrong_is_told_once_and_mended(first: Turn, reason: str) -> None:
    async with planner(first, said(one("a"), one("b", "a"))) as plan:
        derivation = await plan()
    assert shape(derivation) == [("a", ()), ("b", ("a",))]
    assert reason in plan.prompts[-1]
    assert derivation.usage.model_calls == 2


async def test_a_planner_whose_process_died_goes_on_from_its_last_reply() -> None:
    async with planner(Turn(content="no"), said(one("a"), one("b", "a"))) as plan:
        whole = await plan()
        log = plan.log
        for count in range(1, len(log.events), 2):
            plan.resumed(cut(log, count))
            had, asked = len(plan.replies), len(plan.asked)
            again = await plan(generation=2)
            assert replace(again, usage=whole.usage) == whole
            assert again.usage.model_calls == 2
            # What was replied before is not asked for again, and nothing is told twice.
            assert len(plan.asked) - asked == 2 - had, count
            assert plan.replies == [1, 2]
            told = fold_run(plan.log.events, "planner").messages
            assert told == fold_run(log.events, "planner").messages


async def test_hostile_text_is_bounded_masked_and_made_harmless() -> None:
    answer = said(
        one("../../etc/x", description=f"use {SECRET} \x00" + "y" * 50_000, priority="-5"),
        one("\ud800 😀"),
        one("😀"),
        one("b" * 500, "../../ETC/x"),
    )
    async with planner(answer) as plan:
        derivation = await plan()
    names = [subtask.subtask_id for subtask in derivation.subtasks]
    assert names == ["etc-x", "subtask-2", "subtask-3", "b" * 32]
    described = derivation.subtasks[0].description
    assert SECRET not in described
    assert "\0" not in described
    assert len(described) <= 8_000
    assert derivation.subtasks[3].dependencies == ("etc-x",)


# --- planning events: taken once, answered alike however often they are told ---


TIME = 10
SUBTASKS = (
    Subtask(subtask_id="write", description="Write the greeting", priority=2, allowed_paths=("app/*",)),
    Subtask(subtask_id="test", description="Test the greeting", role=Role.QA, dependencies=("write",)),
)
SPLIT = Derivation(derivation_id="d-1", subtasks=SUBTASKS)


class Splitter(ScriptedFleet):
    """A fleet whose planner splits tasks in two."""

    def __init__(self, storage: MemoryLog) -> None:
        super().__init__(storage=storage)
        self.asked: list[DeriveAssignment] = []
        self.fault: Exception | None = None

    async def _derive(self, assignment: DeriveAssignment) -> Derivation:
        self.asked.append(assignment)
        if self.fault is not None:
            raise self.fault
        return replace(SPLIT, derivation_id=f"d-{len(self.asked)}")


@asynccontextmanager
async def served(planner: Splitter, store: MemoryKeyValue) -> AsyncIterator[Any]:
    """The RPC that planning events come in by."""
    log, workspaces = planner.storage, ScriptedWorkspaces()
    async with (
        asyncio.timeout(TIME),
        Executions(execution_deps(log, fleet=planner, workspaces=workspaces)) as executions,
        Derivations(fleet=planner, log=log, workspaces=workspaces) as derivations,
    ):
        planning = PlanningEvents(executions=executions, derivations=derivations, store=store)
        service = service_of(servicer_of(executions, log, planning=planning))
        async with (
            serve_grpc([service], "127.0.0.1:0", None, ready, grace_seconds=0.1) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            yield OrchestratorServiceStub(channel).ProcessPlanningEvent


REQUEST: dict[str, Any] = {
    "event_id": "e-1",
    "event_type": "story.approved",
    "task_description": "Greet",
    "plan_id": "plan-7",
    "repo": pb.RepoRef(path="/srv/app"),
}


async def test_over_the_wire_subtasks_are_told_with_what_they_need_and_faults_name_their_field() -> None:
    planner, store = Splitter(MemoryLog()), MemoryKeyValue()
    async with served(planner, store) as process:
        for change, field in (
            ({"dispatch": True, "repo": None}, "repo"),
            ({"roles": ["DEV", ""]}, "roles[1]"),
            ({"payload": {"nan": float("nan")}}, "payload"),
        ):
            code, said, details = await refusal(process(pb.ProcessPlanningEventRequest(**(REQUEST | change))))
            assert (code, field_named(details)) == (grpc.StatusCode.INVALID_ARGUMENT, field), said
        assert not await store.entries()
        planner.fault = InvalidRequest("no sound split was found")
        code, said, _ = await refusal(process(pb.ProcessPlanningEventRequest(**REQUEST)))
        assert (code, "no sound split" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        planner.fault = None  # the event was not taken: its id is free
        request = pb.ProcessPlanningEventRequest(**REQUEST, roles=["dev", "DEVELOPER", "qa"], occurred_at_ms=1)
        request.payload.update({"labels": ["a"], "points": 2})
        told = await process(request)
        request.occurred_at_ms = 2
        assert await process(request) == told
        request.payload["points"] = 3
        assert (await refusal(process(request)))[0] is grpc.StatusCode.ALREADY_EXISTS
        dispatched = await process(pb.ProcessPlanningEventRequest(**(REQUEST | {"event_id": "e-2"}), dispatch=True))
    first, second = told.tasks
    assert (told.accepted, told.derivation_id) == (True, "d-2")
    assert [first.task_id, second.task_id, *second.dependencies] == ["d-2.write", "d-2.test", "d-2.write"]
    assert (second.role, first.priority, first.plan_id) == ("QA", 2, "plan-7")
    assert list(first.constraints.allowed_paths) == ["app/*"]
    assert [task.task_id for task in dispatched.tasks] == ["event-e-2.write", "event-e-2.test"]
    assert list(dispatched.tasks[1].dependencies) == ["event-e-2.write"]
