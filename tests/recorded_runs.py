"""Runs of reviewers, judges and verifiers: a repository, clones of it, a log, candidates whose patches are kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from swe_ai_fleet.agents.run_deps import RunDeps, RunRecorder
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.domain.budget import Prices
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    CancelRequested,
    Event,
    ModelReplied,
    RunFinished,
    ToolFinished,
    ToolStarted,
    Writer,
)
from swe_ai_fleet.domain.run import INTERRUPTED
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.secrets import Secrets
from tests.candidates import a_candidate
from tests.environments import provider_at

SECRET = "hunter2-hunter2-hunter2"


def cut(log: MemoryLog, count: int) -> MemoryLog:
    """A log that holds the first so many events of another and all of its blobs: what a process that died leaves."""
    left = MemoryLog()
    left._blobs = log._blobs
    for event in log.events[:count]:
        _, _, generation, ordinal = event.id.split("/")
        writer = Writer(
            tenant=event.tenant,
            execution_id=event.execution_id,
            task_id=event.task_id,
            agent_id=event.agent_id,
            generation=int(generation),
        )
        left.store(writer, int(ordinal), to_json(event))
    return left


def of(events: Sequence[Event], agent_id: str, kind: type) -> list[Any]:
    return [event.body for event in events if event.agent_id == agent_id and isinstance(event.body, kind)]


def check(log: MemoryLog, agent_id: str, cut_at: Sequence[Event]) -> list[str]:
    """One chain, no reply and no call twice; the operations whose calls were closed as interrupted."""
    events = log.events
    entries = [body.entry for body in of(events, agent_id, ToolStarted | ToolFinished)]  # type: ignore[arg-type]
    (finished,) = of(events, agent_id, RunFinished)
    assert verify(entries, head=finished.audit_head) is None
    ended = [body.entry.call_id for body in of(events, agent_id, ToolFinished)]
    assert len(ended) == len(set(ended))
    steps = [body.step for body in of(events, agent_id, ModelReplied)]
    assert steps == sorted(set(steps))
    before = {body.entry.call_id for body in of(cut_at, agent_id, ToolFinished)}
    begun = {body.entry.call_id for body in of(cut_at, agent_id, ToolStarted)} - before
    lost = [body for body in of(events, agent_id, ToolFinished) if body.result.error == INTERRUPTED]
    # What had begun and of which nothing is known, and that alone.
    assert {body.entry.call_id for body in lost} == begun
    return [body.entry.operation for body in lost]


async def cancel(log: MemoryLog, reason: str) -> None:
    """Cancel the execution that a log tells of last."""
    last = log.events[-1]
    caller = Writer(
        tenant=last.tenant,
        execution_id=last.execution_id,
        task_id=last.task_id,
        agent_id=CONTROL_SUBJECT,
        generation=0,
    )
    await log.tell(caller, CancelRequested(reason=reason))


class Runs:
    """A repository of git's, and a log in memory for runs that clone it and ask a model over HTTP."""

    def __init__(self, root: Path, files: Mapping[str, str], description: str) -> None:
        self.repository = make_repository(root / "repository", files)
        self.provider = provider_at(root)
        self.log = MemoryLog()
        repo = RepoRef(location=str(self.repository))
        self.task = Task(task_id="t", kind=TaskKind.DELIBERATE, description=description, repo=repo)
        self.environment = Environment()

    def services(self, models: Mapping[str, Any], **deps: Any) -> RunRecorder:
        prices = {"*": Prices(prompt=1e6, completion=1e6)}
        made = RunDeps(models=dict(models), mask=Secrets((SECRET,)), prices=prices, **deps)
        return RunRecorder(deps=made, log=self.log, blobs=self.log, host="test")

    async def pinned(self) -> PinnedRepository:
        return await self.provider.pin(self.task.tenant, self.task.repo)

    @asynccontextmanager
    async def clone(self, name: str) -> AsyncGenerator[Any]:
        async with self.provider.open(self.task.execution_id, name, await self.pinned(), self.environment) as clone:
            yield clone

    async def candidate(self, name: str, patch: bytes, summary: str) -> Candidate:
        ref = await self.log.put(self.task.tenant, self.task.execution_id, patch, "text/x-diff")
        artifacts = Artifacts(patch=ref, files_changed=("app.py",), insertions=1)
        return a_candidate(name, summary=summary, artifacts=artifacts)

    def bodies(self, kind: type) -> list[Any]:
        return [event.body for event in self.log.events if isinstance(event.body, kind)]


class ScriptedRuns(Runs):
    """Runs whose model server can be told what to say; what agents were sent is read back from it."""

    def __init__(
        self, root: Path, files: Mapping[str, str], description: str, server: ScriptedModelServer, model: ChatModel
    ) -> None:
        super().__init__(root, files, description)
        self.server = server
        self.models = {"": model}

    def says(self, *turns: Turn | Failure) -> None:
        self.server.script = Script.of(*turns)

    def asked(self, opening: str) -> int:
        """How often the model got a prompt that begins so; what it can do is found out with other ones."""
        return sum(str(body["messages"][0]["content"]).startswith(opening) for body in self.server.bodies)


def calls(name: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=((name, arguments),))
