"""What `fleet run` asks for, and the request it becomes."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit, fault_of
from swe_ai_fleet.cli.messages import enum_name
from swe_ai_fleet.cli.pairs import pairs
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.task import Role, UncommittedChanges, check_identifier
from swe_ai_fleet.runtime.repository_reference import repository_reference

_SLUG_LENGTH = 40
_NO_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A task as the command line gives it. Numbers left at 0 take the server's default; `timeout_seconds` is whole."""

    description: str
    repo: str = "."
    ref: str = ""
    credential: str = ""
    agents: int = 0
    max_agents: int = 0
    probes: bool = False
    rounds: int | None = None
    role: str = "DEV"
    checks: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    test_command: str = ""
    detect: bool = True
    network: tuple[str, ...] = ()
    branch: str = ""
    uncommitted: UncommittedChanges = UncommittedChanges.REFUSE
    task_id: str = ""
    timeout_seconds: int = 0
    deliberate_only: bool = False
    approve: str = ""
    mode: str = ""
    profile: str = ""
    max_cost: float = 0.0
    require_verified: bool = False
    priority: int = 0
    architect: int = 0
    subtasks: bool = False
    recall: bool = False
    remember: bool = False
    namespaces: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    story: str = ""
    upload: bool = False
    fetch: bool = False
    name: str = field(default_factory=lambda: secrets.token_hex(3))

    def request(self) -> pb.SubmitTaskRequest:
        """The request. Raises CommandFault naming the option that is wrong."""
        try:
            wanted = self.task_id or made_up_id(self.description, self.name, otherwise="task")
            task_id = check_identifier(wanted, field="task_id")
            role = str(Role.parse(self.role))
        except FleetError as error:
            raise fault_of(error) from None
        if not self.description.strip():
            raise _wrong("task", "it is empty", "say what is to be done")
        if self.deliberate_only and self.branch:
            raise _wrong(
                "branch", "a deliberation applies nothing; they exclude each other", "orchestrate, or name none"
            )
        if self.deliberate_only and self.subtasks:
            raise _wrong("subtasks", "they and a deliberation exclude each other: subtasks are merged, and so applied")
        constraints = pb.TaskConstraints(
            timeout_seconds=self.timeout_seconds,
            max_cost=self.max_cost,
            require_verified=self.require_verified,
            checks=[pb.CheckSpec(command=command) for command in self.checks],
            network=pb.NetworkPolicy(allowed_hosts=self.network) if self.network else None,
        )
        environment = pb.EnvironmentSpec(
            setup_commands=self.setup,
            variables=pairs(self.variables, "--env"),
            path_directories=self.path,
            test_command=self.test_command,
            disable_detection=not self.detect,
        )
        given = environment if environment.ByteSize() else None
        # Who names what memory is asked about wants it read.
        memory = pb.MemoryOptions(
            read=self.recall or bool(self.entities),
            write=self.remember,
            namespaces=self.namespaces,
            entities=self.entities,
        )
        if self.namespaces and not (self.recall or self.remember or self.entities):
            raise _wrong(
                "namespace",
                "--namespace does nothing without --recall or --remember",
                "--recall reads memories there, --remember writes them",
            )
        if self.deliberate_only and self.story:
            raise _wrong("story", "it belongs to a delivery, not to a deliberation")
        if self.deliberate_only:
            return pb.SubmitTaskRequest(
                deliberate=pb.DeliberateRequest(
                    task_id=task_id,
                    task_description=self.description,
                    role=role,
                    constraints=constraints,
                    rounds=self.rounds or 0,
                    num_agents=self.agents,
                    max_agents=self.max_agents,
                    probes=self.probes,
                    approval=enum_name(pb.ApprovalPolicy, self.approve, field="approve"),
                    planning_mode=enum_name(pb.PlanningMode, self.mode, field="mode"),
                    model_profile=self.profile,
                    priority=self.priority,
                    architect_top_k=self.architect,
                    enable_peer_review=None if self.rounds is None else self.rounds > 0,
                    repo=repo_ref(self.repo, ref=self.ref, uncommitted=self.uncommitted, credential=self.credential),
                    environment=given,
                    memory=memory,
                )
            )
        return pb.SubmitTaskRequest(
            orchestrate=pb.OrchestrateRequest(
                task_id=task_id,
                task_description=self.description,
                role=role,
                constraints=constraints,
                options=pb.OrchestratorOptions(
                    enable_peer_review=self.rounds != 0,
                    deliberation_rounds=self.rounds or 0,
                    num_agents=self.agents,
                    max_agents=self.max_agents,
                    probes=self.probes,
                    enable_architect_selection=self.architect > 0,
                    architect_top_k=self.architect,
                    derive_subtasks=self.subtasks,
                ),
                priority=self.priority,
                repo=repo_ref(self.repo, ref=self.ref, uncommitted=self.uncommitted, credential=self.credential),
                delivery=pb.Delivery(branch=self.branch),
                approval=enum_name(pb.ApprovalPolicy, self.approve, field="approve"),
                planning_mode=enum_name(pb.PlanningMode, self.mode, field="mode"),
                model_profile=self.profile,
                environment=given,
                memory=memory,
                story_id=self.story,
            )
        )


def made_up_id(text: str, name: str, *, otherwise: str) -> str:
    """A task id of the first words of a text and a name that makes it one of its own."""
    words = _NO_SLUG.sub("-", text.lower())[:_SLUG_LENGTH].strip("-")
    return f"{words or otherwise}-{name}"


def repo_ref(location: str, *, ref: str, uncommitted: UncommittedChanges, credential: str = "") -> pb.RepoRef:
    """The repository that `location` names: a directory of this machine, or a URL. Raises CommandFault."""
    try:
        named = repository_reference(location, ref=ref, uncommitted=uncommitted)
    except InvalidRequest as fault:
        raise _wrong("repo", fault.message, fault.hint) from None
    if credential and not named.url:
        raise _wrong("credential", "it is for repositories behind URLs")
    named.credential_ref = credential
    return named


def _wrong(field: str, message: str, hint: str = "") -> CommandFault:
    return CommandFault(message, exit_code=Exit.USAGE, field=field, hint=hint)
