"""Containers for agents: builds, runs and removes them on a docker or podman engine, within a policy."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.json_values import is_list, is_mapping
from swe_ai_fleet.domain.task import Role, Task
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.extensions.containers import building, containers
from swe_ai_fleet.extensions.containers.containers import (
    MOUNT,
    Access,
    ContainerRequest,
    bounded,
    image_facts,
    safe_facts,
    short_id,
)
from swe_ai_fleet.extensions.containers.engine import DockerEngine, Printout
from swe_ai_fleet.extensions.containers.ownership import (
    OwnedKind,
    OwnedNames,
    OwningRun,
    RemovedObjects,
    reap,
    remove_run,
)
from swe_ai_fleet.extensions.containers.policy import NO_NETWORK, DockerPolicy, GuardedOperation
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.runtime.tool_services import configured
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pack import ToolPack
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.secrets import MASK

_ROLES = frozenset({Role.DEV, Role.QA, Role.DEVOPS})
_MIB = 1024 * 1024
_NOBODY = "65534:65534"
_MAX_STOP_SECONDS = 60
_LOG_BYTES = 8 * _MIB
_SECRET_ARGUMENTS = frozenset({"environment", "build_args"})

Image = Annotated[str, Field(description="An image built in this run, or an allowed one, such as app:latest.")]
Container = Annotated[str, Field(description="Name of a container of this run.")]
Argv = Annotated[list[str], Field(description="Program and arguments, one item each; no shell reads them.")]
Network = Annotated[str, Field(description="none, or a network that was granted.")]
Memory = Annotated[int | None, Field(description="Memory in MiB; always limited.")]
Cpus = Annotated[float | None, Field(description="CPUs, 0.5 is half of one; always limited.")]
Pids = Annotated[int | None, Field(description="Most processes; always limited.")]
Seconds = Annotated[float | None, Field(description="Stop it after so many seconds.", gt=0)]


class DockerTool(Toolkit):
    """The containers of one run. Containers and images of other runs cannot be seen or changed through it.

    An async context manager: its exit removes the run's containers and images, as `close` does.

    Args:
        workspace: Mounted into containers at `/workspace`: an open workspace, or the path of a directory.
        policy: The engine's address, the permitted images and networks, and the limits.
        owner: The run, for the labels by which `reap` finds what it left; None: a run without a name.
    """

    name: ClassVar[str] = "docker"
    lasting = True

    def __init__(
        self,
        workspace: Workspace | Path | str,
        pipeline: Pipeline | None = None,
        *,
        policy: DockerPolicy | None = None,
        owner: OwningRun | None = None,
    ) -> None:
        super().__init__(workspace, pipeline)
        self.policy = policy or DockerPolicy()
        self.owner = owner or OwningRun()
        self.definitions = {name: GuardedOperation(inner=inner) for name, inner in self.definitions.items()}
        self._engine = DockerEngine(self.policy.host, call_seconds=self.policy.call_seconds)
        self._names = OwnedNames(self._engine, self.owner, self.policy)
        self._tree = Tree(self.workspace.root, self.workspace.mount)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()

    async def close(self) -> RemovedObjects:
        """Remove the run's containers and images, if it has any; returns what was removed.

        Raises ToolFailure if the engine does not answer; a later `reap` removes the rest.
        """
        return await uninterrupted(self._close())

    def recorded(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        masked = {
            name: dict.fromkeys(value, MASK) if is_mapping(value) else MASK
            for name, value in arguments.items()
            if name in _SECRET_ARGUMENTS
        }
        return {**arguments, **masked}

    @operation(executes=True, network=True, risk=Risk.HIGH, roles=_ROLES)
    async def build(
        self,
        tag: Annotated[str, Field(description="Name of the image, such as app or app:test.")],
        path: Annotated[str, Field(description="Directory of the workspace to build from, its context.")] = ".",
        dockerfile: Annotated[str, Field(description="The Dockerfile, relative to that directory.")] = "Dockerfile",
        build_args: Annotated[dict[str, str], Field(description="Values of ARG instructions.")] = {},  # noqa: B006
        target: Annotated[str, Field(description="Stage to stop at; the last one if empty.")] = "",
        network: Network = NO_NETWORK,
        memory_mb: Memory = None,
        cpus: Cpus = None,
        timeout_seconds: Seconds = None,
    ) -> ToolResult:
        """Build an image. FROM takes scratch, images of this run and allowed ones; .git stays out of the context.

        Steps have no network unless one is granted. Here-documents, RUN options and ADD of URLs are not supported.
        """
        bounded(build_args, "build_args")
        request = building.ImageBuildRequest(
            tag=tag,
            directory=path,
            dockerfile=dockerfile,
            arguments=build_args,
            network=self.policy.network(network),
            limits=self.policy.limits(memory_mb, cpus, None, unset=self.policy.ceiling),
            target=target,
            seconds=min(timeout_seconds or math.inf, self.policy.max_build_seconds),
        )
        return await building.build(self._names, self.workspace.root, self._tree, request)

    @operation(executes=True, network=True, risk=Risk.HIGH, roles=_ROLES)
    async def run(
        self,
        image: Image,
        command: Argv = [],  # noqa: B006
        name: Annotated[str, Field(description="Name for later calls; random if empty.")] = "",
        detach: Annotated[bool, Field(description="Leave it running and return; else wait for its end.")] = False,
        workspace: Annotated[
            Access, Field(description="The workspace at /workspace: ro, rw or none.")
        ] = Access.READ_ONLY,
        working_directory: Annotated[
            str, Field(description="Relative to the workspace, or absolute in the container.")
        ] = "",
        environment: Annotated[dict[str, str], Field(description="Variables.")] = {},  # noqa: B006
        network: Network = NO_NETWORK,
        memory_mb: Memory = None,
        cpus: Cpus = None,
        pids: Pids = None,
        read_only_root: Annotated[bool, Field(description="Its own files read-only, but for /tmp.")] = False,
        timeout_seconds: Seconds = None,
    ) -> ToolResult:
        """Run a container and read what it printed (stdout and stderr together); it is removed at its end.

        With detach it stays, for docker_exec, docker_logs and docker_stop. It runs as the workspace's owner, without
        capabilities. With workspace='rw' its .git is hidden.
        """
        limits = self.policy.limits(memory_mb, cpus, pids)
        granted = self.policy.network(network)
        bounded(environment, "environment")
        bounded(dict.fromkeys(command, ""), "command")
        hidden = self._checked_mount(workspace)
        directory = self._directory(working_directory, workspace)
        engine_name = self._names.container_name(name)
        reference = await self._names.image(image)
        existing = await self._names.containers()
        if len(existing) >= self.policy.max_containers:
            raise ToolFailure(f"this run has {len(existing)} containers, its most; remove one with docker_rm")
        if name and name in {entry.name for entry in existing}:
            raise ToolFailure(f"this run has a container {name!r} already; remove it with docker_rm or choose another")
        request = ContainerRequest(
            image=reference,
            command=command,
            variables=environment,
            labels=self.owner.labels(OwnedKind.CONTAINER),
            limits=limits,
            network=granted,
            user=self.policy.user or _owner_of(self.workspace.root),
            root=self.workspace.root,
            access=workspace,
            working_directory=directory,
            hidden=hidden,
            read_only_root=read_only_root or self.policy.read_only_root,
            logged=detach,
        )
        if detach:
            identifier = await containers.start(self._engine, request, engine_name)
            short = self._names.short(engine_name)
            return _succeeded("run", f"{short} is running.", {"name": short, "id": identifier[:12]})
        seconds, most = self._seconds(timeout_seconds), self.policy.max_output_bytes
        return await containers.run_to_end(self._engine, request, engine_name, seconds=seconds, limit=most)

    @operation(executes=True, network=True, risk=Risk.HIGH, roles=_ROLES)
    async def exec(
        self,
        container: Container,
        command: Argv,
        working_directory: Annotated[str, Field(description="Absolute, in the container.")] = "",
        timeout_seconds: Seconds = None,
    ) -> ToolResult:
        """Run a command in a running container and read what it printed.

        One that takes too long or prints too much is ended by starting the container anew.
        """
        if not command:
            raise ToolFailure("command is empty; give a program and its arguments, such as ['ls', '-l']")
        bounded(dict.fromkeys(command, ""), "command")
        if working_directory and not working_directory.startswith("/"):
            raise ToolFailure(f"working_directory is absolute in the container, such as {MOUNT}")
        entry = await self._names.container(container)
        seconds, most = self._seconds(timeout_seconds), self.policy.max_output_bytes
        return await containers.execute(
            self._engine, entry, command, directory=working_directory, seconds=seconds, limit=most
        )

    @operation(read_only=True, network=True, locks=(), roles=_ROLES)
    async def ps(self) -> ToolResult:
        """List the containers of this run, ended ones too."""
        entries = await self._names.containers()
        rows = [{"name": entry.name, "id": entry.id[:12], "status": str(entry.listed["Status"])} for entry in entries]
        lines = [f"{row['name']}  {row['id']}  {row['status']}" for row in rows]
        return _succeeded("ps", "\n".join(lines) or "This run has no containers.", {"containers": rows})

    @operation(read_only=True, network=True, locks=(), roles=_ROLES)
    async def logs(
        self,
        container: Container,
        tail: Annotated[int, Field(description="Lines from the end.", ge=1, le=10_000)] = 200,
    ) -> ToolResult:
        """Show the last lines that a container printed."""
        entry = await self._names.container(container)
        printout = Printout(_LOG_BYTES)
        await self._engine.logs(entry.id, printout, lines=tail)
        return _succeeded("logs", printout.text() or f"{entry.name} has printed nothing.", {"name": entry.name})

    @operation(network=True, risk=Risk.MEDIUM, roles=_ROLES, time_limit_seconds=_MAX_STOP_SECONDS + 60.0)
    async def stop(
        self,
        container: Container,
        grace_seconds: Annotated[
            int, Field(description="How long it may take before it is killed.", ge=0, le=_MAX_STOP_SECONDS)
        ] = 10,
    ) -> ToolResult:
        """Stop a container; its logs stay until docker_rm."""
        entry = await self._names.container(container)
        await self._engine.stop(entry.id, grace_seconds)
        code = (await self._engine.container(entry.id))["State"]["ExitCode"]
        return _succeeded("stop", f"{entry.name} has stopped with exit code {code}.", {"container_exit_code": code})

    @operation(network=True, risk=Risk.MEDIUM, roles=_ROLES)
    async def rm(
        self,
        name: Annotated[str, Field(description="A container of this run, or an image that it built.")],
        force: Annotated[bool, Field(description="Remove a container that still runs.")] = False,
    ) -> ToolResult:
        """Remove a container, or an image that was built in this run."""
        if image := await self._names.image_only(name):
            await self._engine.remove_image(f"{self.owner.namespace}/{image.name}")
            return _succeeded("rm", f"The image {image.name} is removed.", {"image": image.name})
        entry = await self._names.container(name)
        if entry.listed.get("State") == "running" and not force:
            raise ToolFailure(f"{entry.name} still runs: stop it with docker_stop, or say force=true")
        await self._engine.remove(entry.id)
        return _succeeded("rm", f"The container {entry.name} is removed.", {"name": entry.name})

    @operation(read_only=True, network=True, locks=(), roles=_ROLES)
    async def inspect(
        self, name: Annotated[str, Field(description="A container of this run, or an image that it built.")]
    ) -> ToolResult:
        """Show the state and the limits of a container, or what an image is; values of variables are not shown."""
        if image := await self._names.image_only(name):
            facts = image_facts(image.name, await self._engine.image(image.id))
        else:
            entry = await self._names.container(name)
            facts = safe_facts(await self._engine.container(entry.id), entry.name)
            facts["image"] = self._names.short(str(facts["image"]))
        shown = {fact: " ".join(map(str, value)) if is_list(value) else value for fact, value in facts.items()}
        return _succeeded("inspect", "\n".join(f"{fact}: {value}" for fact, value in shown.items()), facts)

    @operation(read_only=True, network=True, locks=(), roles=_ROLES)
    async def images(self) -> ToolResult:
        """List the images that were built in this run, and say which others may be used."""
        rows = [
            {"name": entry.name, "id": short_id(entry.id), "size_mib": round(entry.listed["Size"] / _MIB, 1)}
            for entry in await self._names.images()
        ]
        lines = [f"{row['name']}  {row['id']}  {row['size_mib']} MiB" for row in rows] or ["No image was built yet."]
        if self.policy.images:
            lines.append(f"Allowed besides: {', '.join(self.policy.images)}")
        return _succeeded("images", "\n".join(lines), {"images": rows, "allowed": list(self.policy.images)})

    def _seconds(self, requested: float | None) -> float:
        return min(requested or math.inf, self.pipeline.limits.command_timeout_seconds)

    def _checked_mount(self, access: Access) -> tuple[str, ...]:
        """The directories to hide in the mounted workspace. Raises ToolRefusal if it must not be mounted."""
        if access is Access.NONE:
            return ()
        root = self.workspace.root
        if not self.policy.local:
            raise ToolRefusal("the engine is on another machine and has no workspace: say workspace='none'")
        socket = Path(os.path.realpath(self.policy.host.removeprefix("unix://")))
        if socket.is_relative_to(os.path.realpath(root)):
            raise ToolRefusal("the engine's socket lies in the workspace, which therefore can't be mounted: say 'none'")
        if access is Access.READ_ONLY:
            return ()
        if self.pipeline.policy.allowed_paths:
            allowed = ", ".join(self.pipeline.policy.allowed_paths)
            raise ToolRefusal(f"this task may write only to {allowed}: mount the workspace with 'ro'")
        try:
            info = (root / ".git").lstat()
        except FileNotFoundError:
            return ()
        if not stat.S_ISDIR(info.st_mode):
            raise ToolRefusal("the workspace's .git is not a directory and can't be protected: mount it with 'ro'")
        return (".git",)

    def _directory(self, path: str, access: Access) -> str:
        if path.startswith("/") and not f"{path}/".startswith(f"{MOUNT}/"):
            return path
        if access is Access.NONE:
            if path:
                raise ToolFailure("without the workspace, working_directory is absolute in the container")
            return ""
        real = self._tree.find(path or ".")
        kind, _, _ = self._tree.info(real)
        if kind != "directory":
            raise ToolFailure(f"working_directory {path[:80]!r} is a {kind}")
        return MOUNT if real == "." else f"{MOUNT}/{real}"

    async def _close(self) -> RemovedObjects:
        try:
            return await remove_run(self._engine, self.owner) if self._engine.connected else RemovedObjects()
        finally:
            await self._engine.close()


def _succeeded(operation_name: str, content: str, metadata: Mapping[str, object]) -> ToolResult:
    return ToolResult(success=True, operation=f"docker_{operation_name}", content=content, metadata=metadata)


def _owner_of(root: Path) -> str:
    info = root.stat()
    return f"{info.st_uid}:{info.st_gid}" if info.st_uid != 0 else _NOBODY


class ContainerPack(ToolPack):
    """The container engine that settings name; without one, agents get no containers."""

    kit = DockerTool
    shown = {Role.DEVOPS: frozenset({"docker_build", "docker_run", "docker_logs", "docker_ps"})}  # noqa: RUF012

    def __init__(self, settings: Settings) -> None:
        (self.policy,) = configured([settings.docker], DockerPolicy, "docker") if settings.docker else (None,)
        self.summary = "a container engine" if self.policy is not None else ""

    def toolkit(
        self, workspace: Workspace, pipeline: Pipeline, task: Task | None = None, taken: Collection[str] = ()
    ) -> Toolkit | None:
        if task is not None and self.policy is None:
            return None
        tenant, trail = task.tenant if task is not None else "", pipeline.trail
        owner = OwningRun(tenant=tenant, execution_id=trail.execution_id, agent_id=trail.agent_id)
        return DockerTool(workspace, pipeline, policy=self.policy, owner=owner)

    async def reap(self, executions: Collection[str]) -> str:
        if self.policy is None:
            return ""
        try:
            removed = await reap(self.policy, executions=executions)
        except ToolFailure as fault:
            raise ToolFailure(fault.message, hint="start the engine, or leave FLEET_DOCKER out") from None
        counts = {"container": removed.containers, "image": removed.images}
        words = [counted(count, noun) for noun, count in counts.items() if count]
        return ", ".join((*words, *(f"not {failure}" for failure in removed.failures)))
