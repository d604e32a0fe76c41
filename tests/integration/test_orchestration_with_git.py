"""An orchestration in parts with real git: merges, a conflict that an agent resolves, a branch that others can have."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errand import Assignment
from swe_ai_fleet.domain.event import (
    ExecutionClaimed,
    ExecutionStarted,
    ExecutionStatus,
    SubtaskEnded,
    WinnerDelivered,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.subtask import Derivation, Subtask
from swe_ai_fleet.domain.task import Delivery, PinnedRepository, RepoRef, Task, TaskKind, UncommittedChanges
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.agent_runs import AgentRuns
from swe_ai_fleet.orchestrator.approvals import Approvals
from swe_ai_fleet.orchestrator.deliberate import Conclusion
from swe_ai_fleet.orchestrator.endings import Ending
from swe_ai_fleet.orchestrator.orchestrate import Orchestration
from swe_ai_fleet.orchestrator.recipes import Recipes
from swe_ai_fleet.orchestrator.underway import Underway
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.testing.fleet import ScriptedFleet, ScriptedRun
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.repositories import git, make_repository, write_files

LINES = "".join(f"line {number}\n" for number in range(1, 11))
# What each subtask does to app.py: b and c meet in the same line.
EDITS = {"a": ("line 1\n", "line one\n"), "b": ("line 5\n", "line five\n"), "c": ("line 5\n", "line V\n")}
BOTH = "line five, or V\n"
DIAMOND = (
    Subtask(subtask_id="a", description="Write one"),
    Subtask(subtask_id="b", description="Write five", dependencies=("a",)),
    Subtask(subtask_id="c", description="Write V", dependencies=("a",)),
    Subtask(subtask_id="d", description="Add the documents", dependencies=("b", "c")),
)


def provider(root: Path, name: str, blobs: MemoryLog) -> GitWorkspaceProvider:
    return GitWorkspaceProvider(
        root / name, Sandbox(SandboxPolicy()), allowed_roots=(root,), allow_local_paths=True, fetch=blobs.get
    )


@dataclass
class Nodes:
    """The orchestrator's node, and another one where agents run."""

    root: Path
    log: MemoryLog
    here: GitWorkspaceProvider
    there: GitWorkspaceProvider

    @classmethod
    def at(cls, root: Path) -> Nodes:
        log = MemoryLog()
        return cls(root, log, provider(root, "here", log), provider(root, "there", log))


class Resolving(ScriptedFleet):
    """A fleet whose agent takes the markers out of a clone on the other node."""

    nodes: Nodes

    async def _run(self, assignment: Assignment) -> Candidate:
        opened = self.nodes.there.open(assignment.execution_id, "merge", assignment.repository, Environment())
        async with opened as clone:
            file = clone.root / "app.py"
            marked = file.read_text()
            assert "<<<<<<< integration" in marked
            before, after = marked.split("<<<<<<< integration\n")[0], marked.split(">>>>>>> subtask\n")[1]
            file.write_text(before + BOTH + after)
            self.runs = {assignment.agent_id: ScriptedRun(patch=(await clone.diff()).patch)}
        return await super()._run(assignment)


class Children:
    """Executions of subtasks: each edits a clone on the other node, and wins."""

    def __init__(self, nodes: Nodes, *, gone: tuple[str, ...] = ()) -> None:
        self.nodes = nodes
        self.gone = gone
        self.states: dict[str, ExecutionState] = {}
        self.together = asyncio.Barrier(2)

    async def begin(self, task: Task, repository: PinnedRepository) -> str:
        name = task.task_id.rpartition(".")[2]
        if name in ("b", "c") and not self.gone:
            # Both begin where only a is merged.
            await self.together.wait()
        if task.execution_id not in self.states:
            self.states[task.execution_id] = await self._won(name, task, repository)
        return task.execution_id

    async def wait(self, tenant: str, execution_id: str) -> ExecutionState:
        return self.states[execution_id]

    async def cancel(self, tenant: str, execution_id: str, reason: str = "") -> ExecutionState:
        raise AssertionError("nobody cancels")

    async def _won(self, name: str, task: Task, repository: PinnedRepository) -> ExecutionState:
        async with self.nodes.there.open(task.execution_id, "work", repository, Environment()) as clone:
            if name in EDITS:
                file = clone.root / "app.py"
                file.write_text(file.read_text().replace(*EDITS[name]))
            else:
                assert BOTH in (clone.root / "app.py").read_text() or self.gone
                write_files(clone.root, {"docs/readme.md": "Read me.\n"})
            patch = (await clone.diff()).patch
        ref = await self.nodes.log.put("default", task.execution_id, patch, "text/x-diff")
        candidate = Candidate(
            candidate_id="agent-dev-1",
            agent_id="agent-dev-1",
            role=task.role,
            summary=f"Did {name}.",
            stop_reason=StopReason.FINAL_ANSWER,
            artifacts=Artifacts(patch=ref),
            usage=Usage(model_calls=1),
            audit_head="0" * 64,
            submitted_at="",
        )
        return ExecutionState(
            execution_id=task.execution_id,
            task=task,
            repository=repository,
            fingerprint=task.fingerprint(),
            started_at="2026-03-01T09:00:00+00:00",
            updated_at="2026-03-01T10:00:00+00:00",
            finished_at="2026-03-01T10:00:00+00:00",
            status=ExecutionStatus.NO_WINNER if name in self.gone else ExecutionStatus.COMPLETED,
            candidates={"agent-dev-1": candidate},
            winner_id="agent-dev-1",
        )


async def carry_out(nodes: Nodes, task: Task, children: Children) -> Ending:
    """Drive the task on the first node."""
    repository = await nodes.here.pin("default", task.repo)
    writer = Writer(tenant="default", execution_id=task.execution_id, task_id=task.task_id)
    fleet = Resolving(storage=nodes.log)
    fleet.nodes = nodes
    fleet.deriving = lambda _: Derivation(derivation_id="x", subtasks=DIAMOND)
    async with nodes.log.journal(replace(writer, generation=0), fresh=True) as journal:
        await journal.append(ExecutionStarted(task=task, repository=repository, fingerprint=task.fingerprint()))

    async def nobody() -> Conclusion:
        raise AssertionError("the task is carried out in parts")

    async with asyncio.timeout(60), nodes.log.journal(writer) as journal:
        await journal.append(ExecutionClaimed(generation=1, owner="test"))
        approvals = Approvals(nodes.log, task)
        known = await approvals.refresh()
        runs = AgentRuns(fleet=fleet, journal=journal, approvals=approvals, generation=1, known=known)
        work = Underway(runs=runs, parts=children, workspaces=nodes.here, blobs=nodes.log, recipes=Recipes())
        return await Orchestration(work=work, deliberate=nobody).run()


def a_task(repo: Path) -> Task:
    return Task(
        task_id="build",
        kind=TaskKind.ORCHESTRATE,
        description="Build it",
        repo=RepoRef(location=str(repo)),
        derive_subtasks=True,
    )


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"app.py": LINES})


async def test_subtasks_become_commits_of_one_branch(tmp_path: Path, repo: Path) -> None:
    nodes = Nodes.at(tmp_path)
    ending = await carry_out(nodes, a_task(repo), Children(nodes))
    assert (ending.status, ending.error) == (ExecutionStatus.COMPLETED, "")
    merged = git(repo, "show", "fleet/build:app.py") + "\n"
    assert merged == LINES.replace("line 1\n", "line one\n").replace("line 5\n", BOTH)
    subjects = git(repo, "log", "--reverse", "--format=%s", "main..fleet/build").splitlines()
    assert (subjects[0], sorted(subjects[1:3]), subjects[3]) == (
        "Write one",
        ["Write V", "Write five"],
        "Add the documents",
    )
    wanted = "%(trailers:key=Fleet-Task,valueonly)%(trailers:key=Fleet-Merge,valueonly)"
    trailers = git(repo, "log", f"--format={wanted}", "main..fleet/build")
    told = [line for line in trailers.splitlines() if line]
    assert len([line for line in told if line.startswith("merge-")]) == 1
    assert {line for line in told if line.startswith("build.")} == {f"build.{name}" for name in "abcd"}
    assert git(repo, "log", "-1", "--format=%cI", "fleet/build") == "2026-03-01T10:00:00+00:00"
    assert git(repo, "status", "--porcelain") == ""
    git(repo, "fsck", "--strict")
    (delivered,) = [event.body for event in nodes.log.events if isinstance(event.body, WinnerDelivered)]
    git(tmp_path, "clone", "-q", "--single-branch", "--branch", "main", str(repo), "theirs")
    (tmp_path / "branch.bundle").write_bytes(await nodes.log.get(delivered.delivered.bundle))
    git(tmp_path / "theirs", "fetch", "-q", str(tmp_path / "branch.bundle"), "fleet/build")
    assert git(tmp_path / "theirs", "rev-parse", "FETCH_HEAD") == delivered.delivered.commit_sha
    git(tmp_path / "theirs", "apply", "--index", "-", stdin=await nodes.log.get(delivered.delivered.patch))
    assert git(tmp_path / "theirs", "write-tree") == git(repo, "rev-parse", "fleet/build^{tree}")


async def test_one_commit_on_top_of_uncommitted_changes(tmp_path: Path, repo: Path) -> None:
    write_files(repo, {"loose.py": "l = 1\n"})
    nodes = Nodes.at(tmp_path)
    # A snapshot is known where it was taken.
    nodes.there = nodes.here
    task = replace(
        a_task(repo),
        repo=RepoRef(location=str(repo), uncommitted=UncommittedChanges.INCLUDE),
        delivery=Delivery(message="All of it", branch="whole"),
    )
    ending = await carry_out(nodes, task, Children(nodes))
    assert (ending.status, ending.error) == (ExecutionStatus.COMPLETED, "")
    assert git(repo, "log", "--format=%s", "main..whole").splitlines() == [
        "All of it",
        "Snapshot of uncommitted changes",
    ]
    assert git(repo, "show", "whole:loose.py") == "l = 1"
    (delivered,) = [event.body for event in nodes.log.events if isinstance(event.body, WinnerDelivered)]
    # The user's own changes are in the bundle, without which nobody had the branch, and not in the patch.
    assert b"loose.py" not in await nodes.log.get(delivered.delivered.patch)
    git(tmp_path, "clone", "-q", "--single-branch", "--branch", "main", str(repo), "theirs")
    (tmp_path / "branch.bundle").write_bytes(await nodes.log.get(delivered.delivered.bundle))
    git(tmp_path / "theirs", "fetch", "-q", str(tmp_path / "branch.bundle"), "whole")
    assert git(tmp_path / "theirs", "show", "FETCH_HEAD:loose.py") == "l = 1"


async def test_what_is_merged_of_less_than_the_whole_is_kept_and_not_delivered(tmp_path: Path, repo: Path) -> None:
    nodes = Nodes.at(tmp_path)
    ending = await carry_out(nodes, a_task(repo), Children(nodes, gone=("c",)))
    assert ending.status is ExecutionStatus.FAILED
    assert git(repo, "branch", "--list", "fleet/*") == ""
    kept = [event.body.repository for event in nodes.log.events if isinstance(event.body, SubtaskEnded)]
    head = [one for one in kept if one is not None][-1]
    (tmp_path / "kept.bundle").write_bytes(await nodes.log.get(head.bundle))
    git(repo, "fetch", "-q", str(tmp_path / "kept.bundle"), "integration")
    assert git(repo, "log", "--format=%s", "main..FETCH_HEAD").splitlines() == ["Write five", "Write one"]
