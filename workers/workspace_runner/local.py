"""Runs jobs as processes of this machine, without a cluster.

`python -m workers.workspace_runner.local DIRECTORY` takes the place of a Pod: it clones, then runs the agent, each in
its own process, and writes the ending to `exit.json`. Both die with it, but it continues when its runner dies.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import try_lock
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import NotFound, Unavailable
from swe_ai_fleet.sandbox.disk import remove_tree
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.settings import without_login
from workers.jobs import (
    CLONE_FROM,
    CLONE_HOSTS,
    FENCED,
    GIT_CREDENTIALS,
    JOB_ID,
    LOGIN,
    TENANT,
    WORKSPACE,
    ContainerEnding,
    EndReason,
    HeldJob,
    JobRef,
    JobSpec,
)

GIT_DIRECTORY = "FLEET_RUNNER_GIT_DIRECTORY"
SPEC, EXIT, LOG, LOCK, PID = "spec.json", "exit.json", "log.txt", "lock", "pid"
_STEP_GRACE_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_LOG_BYTES = 4_000
_GRACE_SECONDS = 15.0
_LOGINS = ("FLEET_NATS_TOKEN", "FLEET_NATS_TOKEN_FILE", "FLEET_NATS_NKEY_FILE", "FLEET_NATS_ISSUER_FILE")
"""The runner's own logins to NATS, which a container with its own login must not have."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


async def run(directory: Path, environment: Mapping[str, str]) -> None:
    """Run the steps of the job in a directory and write how they ended."""
    spec = from_json(JobSpec, (directory / SPEC).read_bytes())
    plain = {name: value for name, value in environment.items() if name not in (GIT_DIRECTORY, GIT_CREDENTIALS)}
    cloning = dict(plain)
    if directory_of_secrets := environment.get(GIT_DIRECTORY):
        cloning[GIT_CREDENTIALS] = directory_of_secrets
    steps = [("workers.agent", plain)]
    if spec.clones:
        steps.insert(0, ("workers.cloning", cloning))
    reason, message = EndReason.COMPLETED, ""
    deadline = asyncio.get_running_loop().time() + spec.deadline_seconds
    for module, variables in steps:
        code = await _step(directory, module, variables, deadline)
        if code == 0:
            continue
        if code is None:
            reason, message = EndReason.DEADLINE, f"{module} ran for longer than {spec.deadline_seconds:g} seconds"
        elif module == "workers.cloning":
            reason, message = EndReason.CLONE, f"exit code {code}"
        else:
            reason = EndReason.FENCED if code == FENCED else EndReason.ERROR
            message = f"signal {-code}" if code < 0 else f"exit code {code}"
        break
    written = directory / f"{EXIT}.new"
    written.write_text(json.dumps({"reason": reason, "message": message}))
    written.replace(directory / EXIT)


async def _step(directory: Path, module: str, variables: Mapping[str, str], deadline: float) -> int | None:
    """The exit code of a step; None: it timed out."""
    with (directory / LOG).open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            cwd=directory,
            env=dict(variables),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        )
    try:
        async with asyncio.timeout_at(deadline):
            return await process.wait()
    except TimeoutError:
        process.terminate()
        try:
            async with asyncio.timeout(_STEP_GRACE_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        return None


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class LocalBackend:
    """Runs each job in a directory below `root`; running jobs survive this process and are adopted again.

    Args:
        root: A directory for this backend only; created if missing.
        environment: Variables of the processes.
        protocols: Allowed protocols of repositories, comma-separated; `file` allows paths of this machine.
        hosts: Allowed hosts of repositories, as patterns.
        credentials: Directory with git credentials, for the cloning process only.
    """

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        *,
        protocols: str = "https,ssh",
        hosts: str = "*",
        credentials: str = "",
    ) -> None:
        self._root = root
        self._environment = {**environment, CLONE_FROM: protocols, CLONE_HOSTS: hosts}
        if credentials:
            self._environment[GIT_DIRECTORY] = credentials

    async def start(self, spec: JobSpec) -> bool:
        """Start a job's processes; False if it was started before. Raises Unavailable."""
        directory = self._directory(spec.ref)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            return False
        # The lock is held from before the start of the process until its end, even after a crash.
        lock = try_lock(directory / LOCK)
        if lock is None:
            raise Unavailable(f"{spec.ref.name} is locked by another process")
        try:
            (directory / SPEC).write_bytes(to_json(replace(spec, login="")))
            workspace = directory / "workspace"
            identity = {
                JOB_ID: spec.job_id,
                TENANT: spec.ref.tenant,
                WORKSPACE: str(workspace),
                "TASK_ID": spec.task_id,
                "HOSTNAME": spec.ref.name,
            }
            environment = {**self._environment, **identity}
            if spec.login:
                environment |= {
                    "FLEET_NATS_URL": without_login(environment.get("FLEET_NATS_URL", "")),
                    LOGIN: spec.login,
                }
                for name in _LOGINS:
                    environment.pop(name, None)
            with (directory / LOG).open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "workers.workspace_runner.local", str(directory)),
                    env=environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
            (directory / PID).write_text(str(process.pid))
        finally:
            os.close(lock)
        return True

    async def ended(self, ref: JobRef) -> ContainerEnding:
        """Wait until no process of a job runs any more."""
        directory = self._directory(ref)
        # The release of another process's lock cannot be awaited.
        while await asyncio.to_thread(_running, directory):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        return await asyncio.to_thread(_ending, directory)

    async def stop(self, ref: JobRef) -> None:
        """Terminate a job's processes, kill them after a while, and remove its directory."""
        directory = self._directory(ref)
        for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
            if not await asyncio.to_thread(_running, directory):
                break
            # As long as the lock is held, the process id is valid.
            with suppress(ProcessLookupError, FileNotFoundError, ValueError):
                os.killpg(int((directory / PID).read_text()), number)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.ended(ref)
        await uninterrupted(asyncio.to_thread(remove_tree, directory))

    async def finish(self, ref: JobRef, *, failed: bool) -> None:
        """Wait until a job with an outcome has ended, then remove its directory."""
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self.ended(ref)
        except TimeoutError:
            await self.stop(ref)
            return
        await uninterrupted(asyncio.to_thread(remove_tree, self._directory(ref)))

    async def held(self) -> tuple[HeldJob, ...]:
        """The jobs with a directory."""
        return await asyncio.to_thread(self._held_jobs)

    def _held_jobs(self) -> tuple[HeldJob, ...]:
        held_jobs: list[HeldJob] = []
        for spec_file in self._root.glob(f"*/{SPEC}"):
            with suppress(FileNotFoundError, ValueError):
                spec = from_json(JobSpec, spec_file.read_bytes())
                held_jobs.append(
                    HeldJob(
                        ref=spec.ref,
                        job_id=spec.job_id,
                        run_id=spec.run_id,
                        generation=spec.generation,
                        ended=_free(spec_file.with_name(LOCK)),
                    )
                )
        return tuple(held_jobs)

    def _directory(self, ref: JobRef) -> Path:
        if "/" in ref.name or ref.name.startswith("."):
            raise NotFound(f"{ref.name[:64]!r} is not a job")
        return self._root / ref.name


def _running(directory: Path) -> bool:
    return directory.is_dir() and not _free(directory / LOCK)


def _free(lock: Path) -> bool:
    try:
        held = try_lock(lock)
    except FileNotFoundError:
        return True
    if held is None:
        return False
    os.close(held)
    return True


def _ending(directory: Path) -> ContainerEnding:
    log = ""
    with suppress(FileNotFoundError), (directory / LOG).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
        log = file.read().decode("utf-8", "replace")
    try:
        ending = json.loads((directory / EXIT).read_text())
    except FileNotFoundError:
        return ContainerEnding(reason=EndReason.DELETED, message="its processes ended without a result", log=log)
    return ContainerEnding(reason=EndReason(ending["reason"]), message=str(ending["message"]), log=log)


def main() -> None:
    """Run the job in the directory named on the command line."""
    # SIGTERM goes to the whole group; this process waits until the steps have ended, and writes how.
    signal.signal(signal.SIGTERM, _ignore_signal)
    asyncio.run(run(Path(sys.argv[1]), os.environ))


def _ignore_signal(signal_number: int, frame: object) -> None:
    """Does nothing: the steps handle SIGTERM themselves."""


if __name__ == "__main__":
    main()
