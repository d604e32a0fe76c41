"""Third-party harnesses in the workspace, over the Agent Client Protocol (version 1, client side, stdio)."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.external_agent import AgentFault, HandedIn, Handout
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.solving import policy_of
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.council import HARNESS
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.acp.model_gateway import ModelGateway
from swe_ai_fleet.extensions.acp.peer import METHOD_NOT_FOUND, Parameters, Peer, RequestRefused, open_session
from swe_ai_fleet.extensions.acp.permissions import Permissions
from swe_ai_fleet.extensions.acp.session import CANCEL_SECONDS, HarnessSession
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from swe_ai_fleet.sandbox.jail import WORKSPACE
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits

if TYPE_CHECKING:
    from swe_ai_fleet.cli.findings import DoctorFinding

INSTALLED = "/opt/harness"
"""The path of its installation for a harness."""
MAX_HOME_CHARS = 8 * 1024 * 1024
MAX_HOME_FILES = 500
_SECONDS = 200.0
"""The doctor's time limit for starting a harness."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """The configuration of a harness.

    In arguments, variables and the files of `home`, `{model_url}` stands for the base URL of its model API, and
    `{model}` for the model's name there.

    Attributes:
        command: Its argv.
        version: Its version, shown with its candidates.
        directory: Its installation on this host, mounted read-only at /opt/harness; empty: it is below /usr.
        variables: Set over those of the sandbox. No secrets: the harness can read them.
        home: A directory whose text files are copied into the home directory of each run; empty: none are.
    """

    command: tuple[str, ...]
    version: str = ""
    directory: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    home: str = ""

    def check(self, name: str) -> None:
        """Raises InvalidRequest naming the malformed setting."""
        where = f"harnesses.{name}"
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name[:64]!r} cannot name a harness", field="harnesses", hint="lower-case letters, digits, - and ."
            )
        if not self.command:
            raise InvalidRequest("a harness without a command", field=f"{where}.command", hint="its argv, as a list")
        for key, path in (("directory", self.directory), ("home", self.home)):
            if path and not Path(path).is_absolute():
                raise InvalidRequest(f"{path!r} is no absolute path", field=f"{where}.{key}")

    def started(
        self, environment: Environment, *, gateway: Path | None = None, model: str = "", read_only: bool = False
    ) -> InteractiveCommand:
        """The command for a workspace with this environment; `gateway` is the socket of its model.

        Raises PreconditionFailed if a part of the installation is missing.
        """

        def filled(text: str) -> str:
            return text.replace("{model_url}", "{gateway}/v1").replace("{model}", model)

        if self.directory and not Path(self.directory).is_dir():
            raise PreconditionFailed(f"the harness is not installed: there is no directory {self.directory}")
        return InteractiveCommand(
            argv=tuple(map(filled, self.command)),
            variables={name: filled(value) for name, value in self.variables.items()},
            mounts=(Mount(source=self.directory, target=INSTALLED),) if self.directory else (),
            environment=environment,
            gateway=gateway,
            files={path: filled(text) for path, text in self.home_files().items()},
            read_only_workspace=read_only,
        )

    def home_files(self) -> Mapping[str, str]:
        """The text files of `home` by relative path. Raises PreconditionFailed."""
        files: dict[str, str] = {}
        root = Path(self.home)
        if self.home and not root.is_dir():
            raise PreconditionFailed(f"the home template of the harness is missing: {self.home}")
        for folder, _, names in os.walk(root) if self.home else ():
            for name in names:
                path = Path(folder, name)
                if path.is_symlink() or not path.is_file():
                    raise PreconditionFailed(f"the home template of the harness has more than plain files: {path}")
                try:
                    files[str(path.relative_to(root))] = path.read_text()
                except (OSError, UnicodeError) as error:
                    raise PreconditionFailed(f"{path} cannot be read as text: {error}") from None
                if len(files) > MAX_HOME_FILES or sum(map(len, files.values())) > MAX_HOME_CHARS:
                    raise PreconditionFailed(f"the home template of the harness is too large: {self.home}")
        return files


@dataclass(frozen=True, kw_only=True)
class HarnessAgents:
    """An `OutsideAgent` for the harnesses of an installation, at endpoints `acp:NAME`.

    Attributes:
        approval_timeout_seconds: The time limit for a person's decision; 0: none.
    """

    harnesses: Mapping[str, Harness]
    sandbox: SandboxPolicy
    approval_timeout_seconds: float = 0.0
    in_place = True

    async def describe(self, endpoint: str) -> str:
        """`acp:NAME VERSION`, as configured. Raises AgentFault."""
        return f"{endpoint} {self._harness(endpoint).version}".strip()

    async def solve(self, endpoint: str, handout: Handout) -> HandedIn:
        """Run the harness in the clone; all of its processes have ended when this returns. See `OutsideAgent`."""
        task, run = handout.assignment.task, handout.record.run
        policy = policy_of(task)
        permissions = Permissions(handout, policy, timeout_seconds=self.approval_timeout_seconds)
        decisions = await permissions.settle()
        if permissions.gate.rejection:
            return HandedIn(stop=StopReason.REJECTED, error=permissions.gate.rejection)
        pipeline = Pipeline(
            trail=run.trail,
            policy=policy,
            mask=run.deps.mask,
            store=run.store,
            limits=ToolLimits(command_timeout_seconds=task.constraints.limits.command_timeout_seconds),
        )
        budget = Budget(task.constraints.limits, spent=run.earlier.usage, clock=run.clock)
        model, capabilities = await run.model(task, handout.assignment.perspective, budget)
        handout.record.budget = budget
        async with ModelGateway(model, budget, mask=run.deps.mask) as gateway:
            command = self._harness(endpoint).started(
                handout.clone.environment,
                gateway=gateway.socket,
                model=capabilities.model,
                read_only=not task.enable_tools or permissions.gate.wants_proposal,
            )
            try:
                result = await self._run_session(
                    command, handout, pipeline, permissions, prompt=_prompt(handout, decisions)
                )
            except AgentFault:
                if gateway.spent is None:
                    raise
                result = HandedIn(summary=handout.record.answer)
            if gateway.spent is not None and result.stop is not StopReason.AWAITING_APPROVAL:
                result = replace(result, stop=gateway.spent, error=f"its model takes no more calls: {gateway.spent}")
            return result

    async def _run_session(
        self,
        command: InteractiveCommand,
        handout: Handout,
        pipeline: Pipeline,
        permissions: Permissions,
        *,
        prompt: str,
    ) -> HandedIn:
        """Start the harness and run one session with it."""
        sandbox = replace(self.sandbox, tenant=handout.assignment.task.tenant)
        try:
            process = await InteractiveProcess.start(handout.clone.root, command, policy=sandbox)
        except Unavailable as fault:
            raise AgentFault(f"the harness did not start: {fault.message}") from None
        session = HarnessSession(process, handout, pipeline, permissions)
        try:
            return await session.work(prompt)
        finally:
            await uninterrupted(session.close())

    async def greeted(self, name: str, directory: Path, gateway: Path | None) -> str:
        """Start a harness in an absolute directory without links, and end it; returns its own name and version.

        Raises AgentFault, PreconditionFailed, Unavailable.
        """

        async def refuse(method: str, _: Parameters) -> object:
            raise RequestRefused(f"{method[:100]} is not served here", METHOD_NOT_FOUND)

        command = self._harness(f"{HARNESS}{name}").started(Environment(), gateway=gateway, model="model")
        process = await InteractiveProcess.start(directory, command, policy=self.sandbox)
        peer = Peer(process, refuse, lambda _method, _parameters: None)
        try:
            _, details = await open_session(peer, WORKSPACE)
            return details
        finally:
            await uninterrupted(peer.close())
            await uninterrupted(process.close(grace_seconds=CANCEL_SECONDS))

    def _harness(self, endpoint: str) -> Harness:
        harness = self.harnesses.get(endpoint.removeprefix(HARNESS))
        if harness is None:
            configured = ", ".join(sorted(self.harnesses)) or "none is configured"
            raise AgentFault(f"there is no harness {endpoint[:60]!r} here", hint=configured)
        return harness


def _prompt(handout: Handout, decisions: tuple[str, ...]) -> str:
    """The prompt of the task; a resumed run adds the last reply and the decisions of its earlier process."""
    earlier = handout.record.run.earlier
    if not earlier.steps:
        return handout.prompt
    replies = [step.reply.content for step in earlier.steps if step.reply.content]
    resumed = rendered("acp/again", said=replies[-1] if replies else "", decisions=decisions)
    return f"{handout.prompt}\n\n{resumed}"


def harness_agents(settings: Settings, access: ToolAccess) -> HarnessAgents:
    """The harnesses of this installation. Raises InvalidRequest naming a malformed setting."""
    harnesses: dict[str, Harness] = {}
    for name, table in settings.harnesses.items():
        try:
            harnesses[name] = from_plain(Harness, table)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise InvalidRequest(f"the harness {name!r} is malformed: {reason}", field=f"harnesses.{name}") from None
        harnesses[name].check(name)
    return HarnessAgents(
        harnesses=harnesses, sandbox=access.sandbox, approval_timeout_seconds=settings.approval_timeout_seconds
    )


async def examine(settings: Settings) -> list[DoctorFinding]:
    """A finding for each configured harness."""
    return await asyncio.gather(*(_finding(settings, name) for name in settings.harnesses))


async def _finding(settings: Settings, name: str) -> DoctorFinding:
    # Imported late: only the doctor needs them.
    from swe_ai_fleet.cli.findings import broken, faulty, ok
    from swe_ai_fleet.runtime.factories import open_model

    part, hint = f"harness: {name}", f"see FLEET_HARNESSES and docs/harnesses.md; seats name it as acp:{name}"
    try:
        settings = await with_isolation_level(settings)
        agents = harness_agents(settings, tool_access(settings))
        budget = Budget(Limits(max_iterations=1, timeout_seconds=_SECONDS))
        with tempfile.TemporaryDirectory(prefix="fleet-doctor-") as directory:
            async with (
                asyncio.timeout(_SECONDS),
                open_model(settings) as model,
                ModelGateway(model, budget, mask=secret_mask(settings)) as gateway,
            ):
                greeting = await agents.greeted(
                    name, Path(await asyncio.to_thread(os.path.realpath, directory)), gateway.socket
                )
    except (FleetError, TimeoutError) as error:
        return faulty(part, error, hint, seconds=_SECONDS)
    version = agents.harnesses[name].version
    if version and version not in greeting:
        return broken(
            part, f"it calls itself {greeting or 'nothing'}, and settings say {version}", hint, version=version
        )
    return ok(part, f"starts in the sandbox and calls itself {greeting or 'nothing'}", version=version)
