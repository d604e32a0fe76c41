"""A record's hidden tests, run on the winner's patch when all is done, out of every agent's sight.

As SWE-bench does it: a clean clone at the base commit, the patch without what it changed in the files of the tests,
the tests' own patch, then the tests that are to pass. On this machine, in the sandbox.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.batch.records import Hidden
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, NotFound, PatchRejected
from swe_ai_fleet.domain.task import DEFAULT_TENANT, EnvironmentSpec, RepoRef, UncommittedChanges
from swe_ai_fleet.ports import Clone, WorkspaceProvider

SECONDS = 1800.0
_IDS_A_RUN = 500
_TOLD_CHARS = 2_000
_FILE = "diff --git "


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Whether the hidden tests pass; None where they could not be run. `told` is why not, or the end of the output."""

    resolved: bool | None
    told: str = ""


async def evaluate(
    workspaces: WorkspaceProvider, repo: pb.RepoRef, environment: pb.EnvironmentSpec, hidden: Hidden, patch: str
) -> Evaluation:
    """Run a record's hidden tests on a patch of its repository."""
    if not patch:
        return Evaluation(resolved=False, told="there is no patch")
    if not all(_is_pytest_id(one) for one in (*hidden.fail_to_pass, *hidden.pass_to_pass)):
        return Evaluation(resolved=None, told="its tests are not named as pytest names them")
    name = f"evaluate-{uuid.uuid4().hex[:12]}"
    spec = EnvironmentSpec(
        setup=tuple(environment.setup_commands),
        variables=dict(environment.variables),
        path=tuple(environment.path_directories),
        detect=not environment.disable_detection,
        test_command=environment.test_command,
    )
    location = RepoRef(
        location=repo.path or repo.url, ref=repo.ref, commit=repo.commit, uncommitted=UncommittedChanges.IGNORE
    )
    try:
        pinned = await workspaces.pin(DEFAULT_TENANT, location)
        ready = await workspaces.environment(pinned, spec)
        async with workspaces.open(name, "tests", pinned, ready) as clone:
            return await _verdict(clone, hidden, patch)
    except FleetError as fault:
        return Evaluation(resolved=None, told=str(fault))
    finally:
        with suppress(NotFound):
            await workspaces.release(name)


async def _verdict(clone: Clone, hidden: Hidden, patch: str) -> Evaluation:
    try:
        for change in (without_files_of(hidden.test_patch, patch), hidden.test_patch):
            if change.strip():
                await clone.apply(change.encode())
    except PatchRejected as fault:
        return Evaluation(resolved=False, told=str(fault))
    for argv in commands(hidden, clone.environment):
        result = await clone.run(Command(argv=argv, timeout_seconds=SECONDS, merge_stderr=True))
        if not result.ok:
            return Evaluation(resolved=False, told=_end(result))
    return Evaluation(resolved=True)


def commands(hidden: Hidden, environment: Environment) -> Generator[tuple[str, ...]]:
    """What is to be run, each to end with 0."""
    for line in hidden.commands:
        yield ("sh", "-c", line)
    ids = (*hidden.fail_to_pass, *hidden.pass_to_pass)
    for first in range(0, len(ids), _IDS_A_RUN):
        yield (*_pytest(environment.test_command), "-q", "--", *ids[first : first + _IDS_A_RUN])


def without_files_of(tests: str, patch: str) -> str:
    """A patch without its changes to the files that another one changes. Both as git writes them."""
    theirs = {line for line in tests.split("\n") if line.startswith(_FILE)}
    kept: list[str] = []
    keeping = True
    # Lines end where git ends them, and nowhere else that Unicode knows of.
    for line in patch.split("\n"):
        if line.startswith(_FILE):
            keeping = line not in theirs
        if keeping:
            kept.append(line)
    text = "\n".join(kept)
    return text if keeping or not text else f"{text}\n"


def _pytest(test_command: Sequence[str]) -> tuple[str, ...]:
    """How the repository runs pytest, without the arguments of its own."""
    if "pytest" in test_command:
        return tuple(test_command[: test_command.index("pytest") + 1])
    return ("python3", "-m", "pytest")


def _is_pytest_id(name: str) -> bool:
    return ".py" in name.partition("::")[0]


def _end(result: CommandResult) -> str:
    text = result.stdout.text().rstrip()[-_TOLD_CHARS:]
    return f"the time was up\n{text}" if result.timed_out else text
