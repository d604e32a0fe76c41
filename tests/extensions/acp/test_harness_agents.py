"""Harnesses in the workspace, over the Agent Client Protocol: real sandbox, git and log, a small agent of our own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.candidate import Candidate, Perspective
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    ApprovalResolved,
    EventBody,
    ModelReplied,
    PlanMade,
    RunFinished,
    RunStarted,
    ToolFinished,
    Writer,
)
from swe_ai_fleet.domain.run import RunState, fold_run
from swe_ai_fleet.domain.task import ApprovalPolicy, Constraints, RepoRef, Task, TaskKind
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.runtime.agent_worker import AgentWorker, open_worker
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.extensions.acp import acp_agent
from tests.fleet_command import Shell
from tests.integration.test_doctor_findings import doctor
from tests.scripts import GREETINGS, HELLO_FILES

SECONDS = 60
AGENT = "harness"


GREETING = "[greetings]"
BEHAVIOURS = (
    *("good", "asking", "planning", "dying", "hanging", "talking", "flooding", "bloating", "escaping", "chatting"),
    *("absent", "revising"),
)


@dataclass(kw_only=True)
class Place:
    """A worker of this process that has harnesses."""

    worker: AgentWorker
    log: JetStream
    repository: Path
    settings: Settings

    async def assignment(self, behaviour: str, **changes: object) -> CodingAssignment:
        limits = Limits(timeout_seconds=changes.pop("seconds", 40.0), max_tool_calls=changes.pop("calls", 50))
        task = Task(
            **{
                "task_id": f"harness-{uuid.uuid4().hex[:8]}",
                "kind": TaskKind.DELIBERATE,
                "description": "Greet the world.",
                "repo": RepoRef(location=str(self.repository)),
                "num_agents": 0,
                "rounds": 0,
                "constraints": Constraints(limits=limits),
                **changes,
            }
        )
        return CodingAssignment(
            execution_id=task.execution_id,
            agent_id=AGENT,
            task=task,
            repository=await self.worker.workspaces.pin("default", task.repo),
            perspective=Perspective(endpoint=f"acp:{behaviour}"),
        )

    async def run(self, behaviour: str, **changes: object) -> tuple[Candidate, list[EventBody]]:
        assignment = await self.assignment(behaviour, **changes)
        candidate = await self.worker.run(assignment)
        return candidate, await self.bodies(assignment)

    async def bodies(self, assignment: CodingAssignment) -> list[EventBody]:
        events = self.log.read("default", assignment.execution_id, agent_id=AGENT)
        return [one.event.body async for one in events]

    async def decide(self, assignment: CodingAssignment, approval_id: str, decision: ApprovalDecision) -> None:
        """What a person decides, as the execution writes it."""
        resolution = ApprovalResolution(approval_id=approval_id, decision=decision, approver="ann", at=now())
        writer = Writer(
            tenant="default",
            execution_id=assignment.execution_id,
            task_id=assignment.task.task_id,
            agent_id=CONTROL_SUBJECT,
        )
        await self.log.tell(writer, ApprovalResolved(resolution=resolution))

    async def state(self, assignment: CodingAssignment) -> RunState:
        events = self.log.read("default", assignment.execution_id)
        return fold_run([one.event async for one in events], AGENT)


@pytest.fixture(scope="module")
async def place(
    nats_server: EmbeddedNats, model_server: ScriptedModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    directory = acp_agent.install(tmp_path_factory.mktemp("installed"))
    settings = Settings(
        home=tmp_path_factory.mktemp("home"),
        model_url=model_server.url,
        model="scripted",
        model_api_key=acp_agent.HIDDEN,
        harnesses={name: acp_agent.settings(name, directory) for name in BEHAVIOURS},
        nats_url=nats_server.address.url,
        nats_token=nats_server.address.token,
    )
    repository = make_repository(tmp_path_factory.mktemp("repository"), HELLO_FILES)
    async with connect_log(settings, name="reader") as log:
        await log.ensure_streams()
        async with open_worker(settings, host="test") as worker:
            yield Place(worker=worker, log=log, repository=repository, settings=settings)


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(SECONDS):
        yield


def operations(bodies: list[EventBody]) -> list[tuple[str, str]]:
    return [(body.entry.name, str(body.entry.outcome)) for body in bodies if isinstance(body, ToolFinished)]


async def test_what_a_harness_does_is_a_candidate_and_stands_in_the_log(place: Place) -> None:
    candidate, bodies = await place.run("good")
    assert (candidate.error, candidate.stop_reason, candidate.model) == ("", StopReason.FINAL_ANSWER, "acp:good 0.1")
    assert candidate.artifacts.files_changed == ("silent.txt", "told.txt", "utils.py")
    assert "Terminal: 42 0. Network: closed" in candidate.summary
    assert 'Home: {"url": "http://127.0.0.1:3129/v1"} scripted.' in candidate.summary
    # By the fleet's own tools, and by the agent's own word; what it never spoke of is found on disk.
    assert operations(bodies) == [
        ("files_read_text_file", "success"),
        ("files_read_text_file", "success"),
        ("files_read_text_file", "error"),
        ("files_write_file", "success"),
        ("harness_edit", "success"),
        ("harness_execute", "success"),
        ("shell_run_command", "success"),
        ("harness_left", "success"),
    ]
    ended = [body for body in bodies if isinstance(body, ToolFinished)]
    assert ended[5].result.content == "Hello, World!\n" and ended[5].result.metadata["own_word"]
    assert "own word" in ended[5].entry.reason and ended[3].entry.reason == ""
    assert ended[-1].result.content == "not spoken of: silent.txt"
    assert [body.plan.steps[0].why for body in bodies if isinstance(body, PlanMade)] == ["Add it"]
    assert acp_agent.HIDDEN not in repr(bodies)
    assert candidate.usage.tool_calls == 7


FAULTS: tuple[tuple[str, StopReason, str, tuple[str, ...]], ...] = (
    ("dying", StopReason.MODEL_ERROR, "exit code 3; its last output: out of memory", ("half.txt",)),
    ("flooding", StopReason.MODEL_ERROR, "lines that are no messages", ()),
    ("bloating", StopReason.MODEL_ERROR, "a message of more than", ()),
    ("hanging", StopReason.TIMEOUT, "the limit of 3 seconds", ("cancelled.txt", "slow.txt")),
    ("talking", StopReason.FINAL_ANSWER, "", ()),
    ("nowhere", StopReason.MODEL_ERROR, "there is no harness 'acp:nowhere'", ()),
)


async def test_whatever_a_harness_does_wrong_the_candidate_says_so(place: Place) -> None:
    for behaviour, stop, error, files in FAULTS:
        candidate, bodies = await place.run(behaviour, seconds=3.0 if stop is StopReason.TIMEOUT else 40.0)
        assert (candidate.stop_reason, candidate.artifacts.files_changed) == (stop, files), (behaviour, candidate.error)
        assert error in candidate.error and bool(error) == bool(candidate.error), behaviour
        if behaviour == "dying":
            # What it had begun by its own word never ended.
            assert ("harness_execute", "interrupted") in operations(bodies)
            assert candidate.summary == "Half of it."
        assert isinstance(bodies[-1], RunFinished) and bodies[-1].audit_head == candidate.audit_head, behaviour


async def test_a_harness_reaches_nothing_but_its_clone_and_its_model(
    place: Place, model_server: ScriptedModelServer
) -> None:
    candidate, bodies = await place.run("escaping", calls=11)
    assert "Read [], wrote [], network closed" in candidate.summary
    refused = [outcome for name, outcome in operations(bodies) if name.startswith("files_")]
    assert len(refused) == 10 and set(refused) <= {"refused", "error"}
    assert candidate.artifacts.files_changed == ()
    # One call more than it may make.
    short, _ = await place.run("escaping", calls=4)
    assert short.stop_reason is StopReason.MAX_TOOL_CALLS and "4 tool calls" in short.error
    # Its model is the run's, paid for by the run, without a key.
    chatted, bodies = await place.run("chatting", description=f"Chat {GREETING}")
    assert chatted.usage.model_calls == 1 and chatted.usage.prompt_tokens > 0
    assert sum(body.reply.usage.prompt_tokens for body in bodies if isinstance(body, ModelReplied)) == (
        chatted.usage.prompt_tokens
    )


async def test_what_a_harness_asks_waits_for_a_person(place: Place) -> None:
    paths = Constraints(limits=Limits(timeout_seconds=40), allowed_paths=("*.py", "removed.txt"))
    asked = await place.assignment("asking", approval=ApprovalPolicy.RISKY, constraints=paths)
    waiting = await place.worker.run(asked)
    assert waiting.stop_reason is StopReason.AWAITING_APPROVAL
    [request] = (await place.state(asked)).requests.values()
    assert request.reasons and request.approach.endswith("command: rm -rf /tmp/x")
    await place.decide(asked, request.approval_id, ApprovalDecision.REJECTED)
    candidate = await place.worker.run(replace(asked, generation=2, resume=True))
    # The harness began anew, and asked the same: that was decided. The second needs nobody, the third is not allowed.
    assert candidate.error == "" and candidate.stop_reason is StopReason.FINAL_ANSWER
    assert candidate.summary.endswith("reject_once, allow_once, reject_once")
    assert "I was told no" in repr(await place.bodies(asked))
    assert candidate.artifacts.files_changed == ("utils.py",)
    done = operations(await place.bodies(asked))
    assert done.count(("approval_rejected", "success")) == 1
    assert ("harness_permission", "refused") in done and ("files_write_file", "success") in done


async def test_what_a_harness_does_through_the_fleet_is_asked_about_or_refused(place: Place) -> None:
    """It need not ask by itself: its request is the fleet's call, as any other."""
    asked = await place.assignment("good", approval=ApprovalPolicy.EVERY)
    assert (await place.worker.run(asked)).stop_reason is StopReason.AWAITING_APPROVAL
    [request] = (await place.state(asked)).requests.values()
    assert request.call.name == "files_write_file" and "hello_world" in request.approach
    reading, bodies = await place.run("good", enable_tools=False)
    assert ("files_write_file", "refused") in operations(bodies)
    # By itself it could not either.
    assert "Read-only file system" in reading.error and reading.artifacts.files_changed == ()


async def test_a_harness_proposes_before_it_may_change_anything(place: Place) -> None:
    asked = await place.assignment("planning", approval=ApprovalPolicy.PLAN)
    waiting = await place.worker.run(asked)
    assert waiting.stop_reason is StopReason.AWAITING_APPROVAL
    [request] = (await place.state(asked)).requests.values()
    assert request.approach == "Append hello_world to utils.py."
    await place.decide(asked, request.approval_id, ApprovalDecision.APPROVED)
    candidate = await place.worker.run(replace(asked, generation=2, resume=True))
    assert (candidate.summary, candidate.artifacts.files_changed) == ("Did as proposed.", ("utils.py",))


async def test_doctor_starts_each_harness(place: Place, tmp_path: Path) -> None:
    settings = place.settings
    good = settings.harnesses["good"]
    harnesses = {"good": good, "absent": settings.harnesses["absent"], "newer": {**good, "version": "0.2"}}
    harnesses["missing"] = {**good, "directory": "/opt/nothing/here"}
    named = {"HARNESSES": json.dumps(harnesses), "MODEL_URL": settings.model_url, "MODEL": "scripted"}
    found = await doctor(tmp_path, {"EXECUTOR": "kubernetes", **named})
    for name, state, words in (
        ("good", "ok", "small 0.1"),
        ("absent", "fault", "no such model"),
        ("newer", "fault", "settings say 0.2"),
        ("missing", "fault", "/opt/nothing/here"),
    ):
        assert found[f"harness: {name}"][0] == state and words in found[f"harness: {name}"][1], (name, found)


async def test_a_cancelled_harness_is_killed(place: Place) -> None:
    assignment = await place.assignment("hanging")
    running = asyncio.create_task(place.worker.run(assignment))
    while not any(isinstance(body, RunStarted) for body in await place.bodies(assignment)):
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    end = (await place.bodies(assignment))[-1]
    assert isinstance(end, RunFinished) and end.stop_reason is StopReason.CANCELLED
    left = [process.cmdline() for process in psutil.Process().children(recursive=True) if process.is_running()]
    assert not [line for line in left if any("acp_agent" in word for word in line)]


@pytest.mark.slow  # quick: the others here
async def test_a_harness_solves_beside_an_agent_of_ours(shell: Shell, tmp_path: Path) -> None:
    where, name = make_repository(tmp_path / "repository", HELLO_FILES), f"harness-{uuid.uuid4().hex[:8]}"
    ran = await shell.fleet(
        *("run", "--json", "--repo", str(where), "--rounds", "0", "--task-id", name),
        *("--seats", "fleet,acp:small", f"{GREETINGS} Greet."),
    )
    by_agent = {one["candidate_id"]: one for one in ran.document["candidates"]}
    assert set(by_agent) == {"agent-dev-1", "small-2"} and ran.code == 0
    assert "Network: closed" in by_agent["small-2"]["answer"] and by_agent["small-2"]["accepted"]
    options = ("--format", "atif", "--agent", "small-2")
    audit, exported = await asyncio.gather(
        shell.fleet("audit", "verify", name, "--json"), shell.fleet("export", name, *options)
    )
    assert audit.code == 0 and audit.document["intact"]
    assert {"files_write_file", "harness_execute"} <= {
        call["function_name"] for step in json.loads(exported.out)["steps"] for call in step.get("tool_calls") or ()
    }
