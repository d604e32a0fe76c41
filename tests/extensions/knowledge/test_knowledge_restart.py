"""kill -9 of every process of a fleet: what was acknowledged of its knowledge is there when it starts again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import nats
import psutil
import pytest

from fleet.context.v1 import context_pb2 as ctx
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.memory import OUTCOMES_BUCKET
from swe_ai_fleet.testing import ScriptedModelServer
from tests.environments import home_at
from tests.fleet_client import Client, bodies, to_orchestrate
from tests.memory_script import LESSON, RECALLS
from tests.processes import kill, marked, new_mark, title
from tests.scripts import SLOW

NAMESPACE = "repository:restart"
NOTES = "agent:restart"
SECONDS = 90
FACTS = tuple(f"Gate g{number}x opens with key k{number * 7919}." for number in range(20))


class Up(Client):
    """A fleet in processes of its own, and both of its services as clients see them."""

    def __init__(self, process: Process, card: dict[str, Any], fleet: grpc.aio.Channel, known: grpc.aio.Channel):
        super().__init__(fleet, card["token"], known)
        self.process, self.card = process, card

    async def begin(self, task_id: str, story: str, text: str, repository: Path, *, agents: int) -> str:
        memory = pb.MemoryOptions(read=True, write=True, namespaces=[NAMESPACE])
        ours = {"task_id": task_id, "story_id": story, "memory": memory}
        return await self.submit(to_orchestrate(text, repository, agents=agents, **ours))

    async def recorded(self, execution_id: str) -> None:
        """Wait until an execution's work is in the graph."""
        request = ctx.GetGraphRelationshipsRequest(node=f"execution:{execution_id}")
        async with asyncio.timeout(30):
            while True:
                try:
                    await self.context.GetGraphRelationships(request, **self.call)
                except grpc.aio.AioRpcError as fault:
                    assert fault.code() is grpc.StatusCode.NOT_FOUND, fault
                    await asyncio.sleep(0.05)
                else:
                    return

    async def recall(self, query: str, namespace: str = "", limit: int = 5) -> list[tuple[str, str, float]]:
        request = ctx.RecallRequest(query=query, namespaces=[namespace] if namespace else (), limit=limit)
        answer = await self.context.Recall(request, **self.call)
        return [(one.memory.memory_id, one.memory.text, round(one.score, 9)) for one in answer.recollections]

    async def known(self, story: str) -> dict[str, Any]:
        """All that can be read of a story."""
        context = await self.context.GetContext(ctx.GetContextRequest(story_id=story, role=ctx.ROLE_DEV), **self.call)
        session = await self.context.RehydrateSession(ctx.RehydrateSessionRequest(story_id=story), **self.call)
        around = await self.context.GetGraphRelationships(
            ctx.GetGraphRelationshipsRequest(node=f"story:{story}", depth=2), **self.call
        )
        return {
            "version": context.version,
            "hash": context.version_hash,
            "text": context.context_text,
            "session": session.stories[0],
            "relations": sorted((one.source, one.kind, one.target) for one in around.relations),
        }

    async def outcomes(self) -> dict[str, dict[str, Any]]:
        """What is kept of how executions went, by their ids."""
        async with await nats.connect(self.card["nats_url"], token=self.card["nats_token"]) as connection:
            bucket = await connection.jetstream().key_value(OUTCOMES_BUCKET)
            entries = [json.loads((await bucket.get(key)).value or b"") for key in await bucket.keys()]
        return {entry["subject_id"]: entry for entry in entries}

    async def records(self, execution_id: str) -> int:
        """How often an execution's work stands in the log of the graph."""
        async with await nats.connect(self.card["nats_url"], token=self.card["nats_token"]) as connection:
            stream = await connection.jetstream().stream_info("CONTEXT_CHANGES", subjects_filter=">")
            return sum(n for subject, n in (stream.state.subjects or {}).items() if execution_id in subject)


@asynccontextmanager
async def fleet_up(home: Path, model_url: str, **more: str) -> AsyncIterator[Up]:
    """`fleet up` on a home, with more variables; asked to end at the end, where it is still there."""
    variables = {
        "FLEET_HOME": str(home_at(home)),
        "FLEET_MODEL_URL": model_url,
        "FLEET_MODEL": "scripted",
        "FLEET_LISTEN": "127.0.0.1:0",
        "FLEET_CONTEXT_LISTEN": "127.0.0.1:0",
        "FLEET_EMBEDDINGS": "none",
    }
    with (home.parent / "up.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "swe_ai_fleet.cli.main", "up", "--json"),
            env={**os.environ, **variables, **more},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        async with AsyncExitStack() as stack:
            assert process.stdout is not None
            async with asyncio.timeout(SECONDS):
                assert json.loads(await process.stdout.readline())["pid"] == process.pid
            card = json.loads((home / "fleet.json").read_text())
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(card["address"]))
            context = await stack.enter_async_context(grpc.aio.insecure_channel(card["context"]))
            yield Up(process, card, channel, context)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            await process.wait()


async def _tell_of_the_story(up: Up) -> None:
    for story in ("S-1", "S-2"):
        given = ctx.Story(story_id=story, title=f"Greet {story}", acceptance_criteria=["it greets"], case_id="C-1")
        await up.context.CreateStory(ctx.CreateStoryRequest(story=given), **up.call)
    for task in (
        ctx.Task(task_id="T-1", story_id="S-1", title="The greeting", role=ctx.ROLE_DEV),
        ctx.Task(task_id="T-2", story_id="S-1", title="The tests", role=ctx.ROLE_QA, depends_on=["T-1"]),
    ):
        await up.context.CreateTask(ctx.CreateTaskRequest(task=task), **up.call)
    decision = ctx.Decision(decision_id="D-1", story_id="S-1", title="A comma", rationale="English", task_ids=["T-1"])
    await up.context.AddProjectDecision(ctx.AddProjectDecisionRequest(decision=decision), **up.call)
    await up.context.TransitionPhase(ctx.TransitionPhaseRequest(story_id="S-1", phase=ctx.PHASE_DESIGN), **up.call)


async def _kill_everything(up: Up, mark: str, home: Path) -> set[str]:
    """kill -9, all at once, until nothing is left; the names of what there was."""
    found = [psutil.Process(up.process.pid), *marked(mark, home)]
    names = {title(one) for one in found}
    async with asyncio.timeout(60):
        while found:
            for one in found:
                kill(one)
            await asyncio.sleep(0.05)
            found = marked(mark, home)
    await up.process.wait()
    return names


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_knowledge_survives_the_death_of_every_process(
    model_server: ScriptedModelServer, repository: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with new_mark() as mark:
        async with fleet_up(home, model_server.url) as up:
            await _tell_of_the_story(up)
            done = await up.begin("T-1", "S-1", f"Say hello to the world {RECALLS}", repository, agents=1)
            await up.recorded(done)
            rating = ctx.Rating(subject_id=done, rating=4)
            await up.context.RecordOutcome(ctx.RecordOutcomeRequest(rating=rating), **up.call)
            known, outcome = await up.known("S-1"), (await up.outcomes())[done]
            assert LESSON in [text for _, text, _ in await up.recall("hello_world", NAMESPACE)]
            assert (outcome["rating"], outcome["success"]) == (4, True)

            for fact in FACTS:
                await up.context.AddFact(ctx.AddFactRequest(namespace=NOTES, text=fact), **up.call)
            unfinished = await up.begin("T-3", "S-2", f"{SLOW} Greet.", repository, agents=2)
            await up.until(unfinished, "tool_started")
            killed = await _kill_everything(up, mark, home)
            assert {"nats-server", "raylet", "gcs_server"} <= killed, killed
            assert any(one.startswith("ray::AgentHost") for one in killed), killed
        assert (home / "fleet.json").exists()

        async with fleet_up(home, model_server.url) as up:
            assert await up.known("S-1") == known
            assert (await up.outcomes())[done] == outcome
            for fact in FACTS:
                assert (await up.recall(fact, NOTES, limit=1))[0][1] == fact
            assert LESSON in [text for _, text, _ in await up.recall("hello_world", NAMESPACE)]

            events = await up.events(unfinished)
            assert [body["status"] for body in bodies(events, "execution_finished")] == ["completed"]
            assert [body["generation"] for body in bodies(events, "execution_claimed")] == [1, 2]
            await up.recorded(unfinished)
            assert (await up.records(unfinished), await up.records(done)) == (1, 1)
            assert {done: True, unfinished: True} == {one: o["success"] for one, o in (await up.outcomes()).items()}
            came_of_it = await up.recall(f"{SLOW} Greet.", NAMESPACE, limit=100)
            assert sum(SLOW in text for _, text, _ in came_of_it) == 1
        assert not marked(mark, home)
