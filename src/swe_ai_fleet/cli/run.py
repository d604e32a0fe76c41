"""`fleet run`: submits a task, watches it, and shows its outcome.

A local repository is uploaded to a fleet that cannot reach it, and the winner's branch is fetched back.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.executions import exit_of_state
from swe_ai_fleet.cli.live import WatchedProgress, follow, view
from swe_ai_fleet.cli.options import Execution, option
from swe_ai_fleet.cli.order import JudgeOrder, Order
from swe_ai_fleet.cli.outcome import show_outcome
from swe_ai_fleet.cli.place import LocalFleet
from swe_ai_fleet.cli.screen import CommandFault, Exit, Interrupts, Screen, interrupts
from swe_ai_fleet.domain.command import address_of
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import RepoRef, UncommittedChanges

CHUNK_BYTES = 256 * 1024
_TOOLCHAINS = {"go.mod": "go", "Cargo.toml": "cargo", "package.json": "npm"}
_PYTHON = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
_UNCOMMITTED = {
    pb.UNCOMMITTED_CHANGES_UNSPECIFIED: UncommittedChanges.REFUSE,
    pb.UNCOMMITTED_CHANGES_INCLUDE: UncommittedChanges.INCLUDE,
    pb.UNCOMMITTED_CHANGES_IGNORE: UncommittedChanges.IGNORE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """An uploaded local repository; `reference` names it in requests."""

    path: Path
    bundle: Path
    reference: pb.RepoRef


def is_remote(address: str) -> bool:
    """Whether a server's address is of another machine."""
    host = address.rpartition(":")[0].strip("[]").lower()
    if address.startswith("unix:") or host == "localhost":
        return False
    parsed = address_of(host)
    return parsed is None or not parsed.is_loopback


@asynccontextmanager
async def uploaded(screen: Screen, client: FleetClient, repo: pb.RepoRef) -> AsyncGenerator[Uploaded]:
    """Pack and upload the directory of `repo`; its bundle exists until the context ends. Raises CommandFault."""
    # Imported here: commands without an upload need no git.
    from swe_ai_fleet.adapters.git_workspace.bundles import pack_repository

    with tempfile.TemporaryDirectory(prefix="fleet-upload-") as directory:
        wanted = RepoRef(
            location=repo.path, ref=repo.ref, commit=repo.commit, uncommitted=_UNCOMMITTED[repo.uncommitted]
        )
        packed = await pack_repository(wanted, Path(directory))
        size = packed.bundle.stat().st_size
        screen.note(f"uploading {size:,} bytes of {packed.branch} at {packed.commit[:12]} ...")
        header = pb.UploadRepositoryHeader(
            digest=await asyncio.to_thread(_digest, packed.bundle),
            size_bytes=size,
            ref=packed.branch,
            subdirectory=repo.subdirectory or packed.subdirectory,
        )
        reference = await client.upload(_pieces(header, packed.bundle))
        yield Uploaded(path=Path(repo.path), bundle=packed.bundle, reference=reference)


async def fetch_back(screen: Screen, client: FleetClient, sent: Uploaded, state: ExecutionState) -> None:
    """Put the delivered branch into the local repository. Raises CommandFault."""
    from swe_ai_fleet.adapters.git_workspace.bundles import unpack_branch

    delivered = state.delivered or state.integration
    if state.delivered is None or delivered is None or delivered.bundle is None:
        screen.note("there is no branch to fetch", style="yellow")
        return
    content = await client.artifact(state.execution_id, delivered.bundle.digest)
    bundle = sent.bundle.with_name("delivered")
    await asyncio.to_thread(bundle.write_bytes, content)
    commit = await unpack_branch(sent.path, bundle, state.delivered.branch, known=sent.bundle)
    screen.note(f"fetched branch {state.delivered.branch} at {commit[:12]} into {sent.path}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pieces(header: pb.UploadRepositoryHeader, bundle: Path) -> Iterator[pb.UploadRepositoryRequest]:
    yield pb.UploadRepositoryRequest(header=header)
    with bundle.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield pb.UploadRepositoryRequest(chunk=chunk)


async def run(screen: Screen, fleet: Fleet, order: Order) -> Exit:
    return await _run_task(screen, fleet, order)


async def judge(screen: Screen, fleet: Fleet, order: JudgeOrder) -> Exit:
    return await _run_task(screen, fleet, order)


async def _run_task(screen: Screen, fleet: Fleet, order: Order | JudgeOrder) -> Exit:
    """Run a task to its end on a fleet. Ctrl-C cancels the execution; a second one leaves without waiting."""
    request = order.request()
    detach = isinstance(order, Order) and order.detach
    if isinstance(fleet, LocalFleet):
        fleet.needs_model = isinstance(order, Order)
        if detach and not fleet.runs:
            message = "the fleet that --local starts ends with the command"
            raise CommandFault(message, field="detach", hint="start one that stays: fleet up")
    with interrupts() as signals:
        async with fleet as client, _with_upload(screen, client, request, order) as sent:
            if isinstance(order, Order):
                _check_toolchain(client, order)
            accepted = await client.submit(request)
            again = "; --attempt 2 runs it again" if isinstance(order, Order) else ""
            existed = f" (submitted before{again})" if accepted.already_existed else ""
            screen.note(f"task {accepted.task_id}: execution {accepted.execution_id}{existed}")
            if detach:
                ids = {"task_id": accepted.task_id, "execution_id": accepted.execution_id}
                screen.result({**ids, "already_existed": accepted.already_existed}, accepted.execution_id)
                screen.note(f"fleet watch {accepted.task_id} shows it")
                return Exit.ACCEPTED
            state = await _watch(screen, client, accepted.execution_id, signals)
            code = await show_outcome(screen, client, state)
            if sent is not None and order.fetch:
                await fetch_back(screen, client, sent, state)
            return code


def _check_toolchain(client: FleetClient, order: Order) -> None:
    """Check that this machine has the program that the repository's tests need, before agents begin.

    Only for a fleet on this machine and an order without checks and without an environment.
    Raises CommandFault.
    """
    set_up_by_hand = (order.setup, order.checks, order.path, order.test_command, order.no_detect, order.upload)
    if any(set_up_by_hand) or is_remote(client.address):
        return
    root = Path(order.repo)
    manifests = [name for name in (*_TOOLCHAINS, *_PYTHON) if (root / name).is_file()]
    program = _TOOLCHAINS.get(manifests[0]) if len(manifests) == 1 else None
    if program and shutil.which(program) is None:
        raise CommandFault(
            f"this machine has no {program}, which {manifests[0]} needs: no test could be run",
            exit_code=Exit.UNAVAILABLE,
            hint=f"install {program}, add it with --setup or --path, name a --check, or continue with --no-detect",
        )


@asynccontextmanager
async def _with_upload(
    screen: Screen, client: FleetClient, request: pb.SubmitTaskRequest, order: Order | JudgeOrder
) -> AsyncGenerator[Uploaded | None]:
    """Upload the request's repository if necessary; the request then names the upload."""
    repo = getattr(request, request.WhichOneof("task") or "orchestrate").repo
    if order.upload or (repo.path and is_remote(client.address)):
        if not repo.path:
            raise CommandFault("--upload is for a directory of this machine", hint="the server clones a URL itself")
        async with uploaded(screen, client, repo) as sent:
            repo.CopyFrom(sent.reference)
            yield sent
        return
    if order.fetch:
        raise CommandFault("--fetch belongs to an upload", hint="here the branch is in the repository anyway")
    yield None


async def watch(
    screen: Screen,
    client: FleetClient,
    name: Execution,
    *,
    text: Annotated[bool, option("Also show the text of models as it is generated.")] = False,
) -> Exit:
    """Show an execution's events from the first one until it ends. Ctrl-C ends only the watching."""
    execution_id = await client.find(name)
    progress = WatchedProgress()
    with interrupts() as signals, view(screen, progress, json_lines=True) as show:
        following = await signals.race(follow(client, execution_id, progress, show, text=text))
        if not following.done():
            following.cancel()
            raise CommandFault("stopped watching; the execution continues", exit_code=Exit.STOPPED)
        state = following.result()
    if screen.json:
        return exit_of_state(state)
    return await show_outcome(screen, client, state)


async def _watch(screen: Screen, client: FleetClient, execution_id: str, signals: Interrupts) -> ExecutionState:
    progress = WatchedProgress()
    with view(screen, progress) as show:
        following = await signals.race(follow(client, execution_id, progress, show))
        lost = following.exception() if following.done() else None
        if isinstance(lost, CommandFault) and lost.exit_code is Exit.UNAVAILABLE:
            lost.message += "; the task is stored, and continues once the fleet runs again"
            lost.hint = f"then: fleet watch {execution_id} ({lost.hint})"
        if not following.done():
            screen.note("cancelling the execution; Ctrl-C again leaves without waiting", style="yellow")
            try:
                await client.cancel(execution_id, "Ctrl-C")
                return await following
            finally:
                following.cancel()
        return following.result()
