"""A task: what a caller submits, and the identity that makes it idempotent."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Limits, Totals
from swe_ai_fleet.domain.command import CheckSpec, TaskMcpServer, check_variables
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.text import check_branch, check_identifier
from swe_ai_fleet.domain.workflow import WorkflowTask

DEFAULT_TENANT = "default"
DEFAULT_AGENTS = 3
DEFAULT_ROUNDS = 1
SCRATCH = "scratch:"
"""The location of a repository that has one commit and nothing in it, the same on every node."""
UPLOAD = "upload:"
"""The location of a repository that a client uploaded is this and the SHA-256 of its bundle."""
COUNCIL_ROUNDS = -1
"""`rounds` of a task that leaves them to its council."""
MAX_DESCRIPTION_BYTES = 64 * 1024
MAX_PRIORITY = 9
MAX_PATCHES = 64
_EXECUTION_NAMESPACE = uuid.UUID("8d5d1b5e-6a0f-5f0e-9c39-7d6f9a0f3b11")


class Role(StrEnum):
    """What an agent is for; it decides the prompt and the tools."""

    DEV = "DEV"
    QA = "QA"
    ARCHITECT = "ARCHITECT"
    DEVOPS = "DEVOPS"
    DATA = "DATA"

    @classmethod
    def parse(cls, text: str) -> Role:
        """The role a caller named, in any case; empty and `DEVELOPER` mean DEV. Raises InvalidRequest."""
        name = text.strip().upper() or "DEV"
        name = "DEV" if name == "DEVELOPER" else name
        if name not in cls.__members__:
            raise InvalidRequest(f"unknown role {text[:64]!r}", field="role", hint=f"one of {', '.join(cls)}")
        return cls(name)


class TaskKind(StrEnum):
    """`deliberate` ranks candidates and applies nothing; `orchestrate` delivers the winner; `workflow` runs one.

    `judge` ranks patches that somebody hands in: no agent works on it. `plan` is a goal of a plan session, `chat` a
    chat message.
    """

    DELIBERATE = "deliberate"
    ORCHESTRATE = "orchestrate"
    WORKFLOW = "workflow"
    JUDGE = "judge"
    PLAN = "plan"
    CHAT = "chat"


class PlanningMode(StrEnum):
    """`simple` runs one plan, `agentic` chooses each next step, `hybrid` decides by the task's complexity."""

    SIMPLE = "simple"
    AGENTIC = "agentic"
    HYBRID = "hybrid"


class ApprovalPolicy(StrEnum):
    """What a person has to approve: nothing, the plan, risky calls, every call with a side effect."""

    NONE = "none"
    PLAN = "plan"
    RISKY = "risky"
    EVERY = "every"


class UncommittedChanges(StrEnum):
    """What to do when a local repository has changes that no commit holds."""

    REFUSE = "refuse"
    INCLUDE = "include"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoRef:
    """A repository as a caller names it. `location` is a URL or, on loopback, a path on the server.

    `ref` is a branch, tag or anything `git rev-parse` knows (empty = the repository's HEAD); `commit` wins over it.
    """

    location: str
    ref: str = ""
    commit: str = ""
    subdirectory: str = ""
    credential: str = ""
    uncommitted: UncommittedChanges = UncommittedChanges.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRepository:
    """A repository at one commit: what every candidate of an execution starts from.

    `commit` is the full object id; `snapshot_of` is set when it is a snapshot of uncommitted changes on that commit.
    A `bundle` (a git bundle) has the commits up to `commit` that the location itself lacks.
    """

    tenant: str
    location: str
    commit: str
    branch: str = ""
    subdirectory: str = ""
    credential: str = ""
    snapshot_of: str = ""
    bundle: BlobRef | None = None

    @property
    def shared_commit(self) -> str:
        """The last commit that the location has too."""
        return self.snapshot_of or self.commit


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What the repository's own commands need, beside what its files say.

    With `detect` dependencies, interpreter and tests are found in the repository's files; `setup` lines run after that,
    once in the sandbox, in order, in a shell. `path` lists directories (relative to the repository or absolute) put
    first on PATH. `test_command` runs the tests; empty: the detected one. `image` names the container image that all of
    it happens in, with the digest once a task is accepted; `image_credential` what opens its registry.
    """

    setup: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    path: tuple[str, ...] = ()
    image: str = ""
    image_credential: str = ""
    detect: bool = True
    test_command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a candidate must respect. Paths are globs relative to the repository; empty means no restriction.

    `limits` are each candidate's, `totals` those of all candidates together. `allowed_hosts` are patterns of the hosts
    that tools and checks may reach; None = what the installation says. With `require_verified` only a candidate that
    evidence verifies may win.
    """

    rubric: str = ""
    requirements: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = field(default_factory=Limits)
    totals: Totals = field(default_factory=Totals)
    allowed_tools: tuple[str, ...] = ()
    denied_tools: tuple[str, ...] = ()
    allowed_paths: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    checks: tuple[CheckSpec, ...] = ()
    mcp_servers: tuple[TaskMcpServer, ...] = ()
    abort_on_error: bool = False
    require_verified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How a winner reaches the target repository. Empty branch = `fleet/<task_id>`."""

    branch: str = ""
    push: bool = False
    author_name: str = "SWE AI Fleet"
    author_email: str = "fleet@localhost"
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """How a task uses memory: by default it neither reads nor writes. Without `namespaces` it uses the repository's.

    Memories that name one of the `entities` are given to agents even where they do not fit the task otherwise.
    """

    read: bool = False
    write: bool = False
    namespaces: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """Which context a task's agents get: the project's, where the task belongs to a story, a case or a known task, and
    the repository's (its map, its instruction files).

    Without a `phase` the story's own is used; `token_budget` 0 is the context service's default.
    """

    phase: str = ""
    token_budget: int = 0
    include_repository_map: bool = True
    include_decisions: bool = True
    include_history: bool = True
    include_instructions: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedPatch:
    """A patch from outside, to be judged. `name` is its candidate's id, `summary` its author's description."""

    name: str
    patch: BlobRef
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request, normalised. `(tenant, kind, task_id, attempt)` is its identity, the rest its content.

    `model_profile` names one of the installation's, or several separated by commas, which the candidates take in turn;
    without a `planning_mode` the installation's is used. In the queue a higher `priority` goes first, and callers take
    turns. `architect_top_k` is how many of the best candidates an architect chooses among; 0: no architect does.
    With `num_agents` 0 there are as many agents as the council has members, with `rounds` `COUNCIL_ROUNDS` as many
    rounds as the council says. While no candidate is convincing, more agents start, up to `max_agents` in all; 0: none.
    With `probes` an agent turns the statement into a checklist with probes that run on every candidate. `custom_params`
    override the council's. `seats` replace its members, each `fleet` or `acp:NAME`. `patches` are the candidates of a
    task of the kind `judge`. `traceparent` (W3C Trace Context) is the caller's span. `model_patience_seconds` is how
    long its runs wait while no model server is available; None: the installation's default.
    """

    task_id: str
    kind: TaskKind
    description: str
    repo: RepoRef
    tenant: str = DEFAULT_TENANT
    role: Role = Role.DEV
    context: str = ""
    constraints: Constraints = field(default_factory=Constraints)
    environment: EnvironmentSpec = field(default_factory=EnvironmentSpec)
    delivery: Delivery = field(default_factory=Delivery)
    num_agents: int = DEFAULT_AGENTS
    max_agents: int = 0
    probes: bool = False
    rounds: int = DEFAULT_ROUNDS
    enable_tools: bool = True
    tools: tuple[str, ...] = ()
    model_profile: str = ""
    planning_mode: PlanningMode | None = None
    approval: ApprovalPolicy = ApprovalPolicy.NONE
    attempt: int = 1
    case_id: str = ""
    story_id: str = ""
    plan_id: str = ""
    priority: int = 0
    caller: str = ""
    architect_top_k: int = 0
    derive_subtasks: bool = False
    parent_execution_id: str = ""
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    context_options: ContextOptions = field(default_factory=ContextOptions)
    custom_params: Mapping[str, str] = field(default_factory=dict[str, str])
    workflow: WorkflowTask | None = None
    patches: tuple[SubmittedPatch, ...] = ()
    seats: tuple[str, ...] = ()
    traceparent: str = ""
    model_patience_seconds: float | None = None

    @property
    def execution_id(self) -> str:
        return execution_id(tenant=self.tenant, kind=self.kind, task_id=self.task_id, attempt=self.attempt)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that state what is wanted."""
        return (self.description, self.context, self.constraints.rubric, *self.constraints.requirements)

    @property
    def most_agents(self) -> int:
        """How many agents there may be in all."""
        return max(self.num_agents, self.max_agents)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The model profiles it names."""
        return tuple(name.strip() for name in self.model_profile.split(",") if name.strip())

    def fingerprint(self) -> str:
        """SHA-256 of the whole content: equal for a repeated request, different for another one with the same id.

        Caller, priority and trace are not content.
        """
        content: dict[str, Any] = {**asdict(self), "priority": 0, "caller": ""}
        del content["traceparent"]
        # Fields newer than the first stored fingerprints count only where they are set.
        for name, default in _NEWER_FIELDS.items():
            if getattr(self, name) == default:
                del content[name]
        for name, defaults in _NEWER_PARTS.items():
            for part, default in defaults.items():
                if name in content and content[name][part] == default:
                    del content[name][part]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def validated(self, *, max_agents: int) -> Task:
        """This task, if it can be accepted. Raises InvalidRequest naming the field and the way out."""
        check_identifier(self.task_id, field="task_id")
        check_description(self.description)
        self._check_patches()
        if not self.repo.location.strip() and self.kind is not TaskKind.WORKFLOW:
            hint = "set repo.path or repo.url; this server has no default (FLEET_DEFAULT_REPOSITORY)"
            raise InvalidRequest("no repository given", field="repo", hint=hint)
        if self.delivery.branch:
            check_branch(self.delivery.branch, field="delivery.branch")
        _check_range(self.num_agents, field="num_agents", low=0, high=max_agents)
        _check_range(self.max_agents, field="max_agents", low=0, high=max_agents)
        _check_range(self.rounds, field="rounds", low=COUNCIL_ROUNDS, high=16)
        _check_range(self.attempt, field="attempt", low=1, high=10_000)
        _check_range(self.priority, field="priority", low=0, high=MAX_PRIORITY)
        _check_range(self.architect_top_k, field="architect_top_k", low=0, high=16)
        limits = self.constraints.limits
        _check_range(limits.max_iterations, field="constraints.max_iterations", low=1, high=10_000)
        _check_range(limits.max_tool_calls, field="constraints.max_tool_calls", low=1, high=100_000)
        _check_range(limits.max_tokens, field="constraints.max_tokens", low=0, high=10**12)
        totals = self.constraints.totals
        for name, value in (("total_max_tokens", totals.max_tokens), ("total_max_tool_calls", totals.max_tool_calls)):
            if value and value < self.most_agents:
                hint = f"at least 1 for each of {self.most_agents} agents"
                raise InvalidRequest(f"{name} is {value}", field=f"constraints.{name}", hint=hint)
        _check_range(totals.max_cost, field="constraints.total_max_cost", low=0, high=10**9)
        _check_range(limits.timeout_seconds, field="constraints.timeout_seconds", low=1, high=7 * 86_400)
        check_variables(self.environment.variables, field="environment.variables")
        for number, server in enumerate(self.constraints.mcp_servers):
            check_variables(server.variables, field=f"constraints.mcp_servers[{number}].variables")
        for number, check in enumerate(self.constraints.checks):
            where = f"constraints.checks[{number}]"
            if not check.command.strip():
                raise InvalidRequest("a check has no command", field=f"{where}.command")
            _check_range(check.timeout_seconds, field=f"{where}.timeout_seconds", low=1, high=86_400)
        return self

    def _check_patches(self) -> None:
        if self.kind is not TaskKind.JUDGE:
            if self.patches:
                raise InvalidRequest("only JudgePatches takes patches", field="patches", hint="leave them out")
            return
        if not 1 <= len(self.patches) <= MAX_PATCHES:
            raise InvalidRequest(
                f"there are {len(self.patches)} patches", field="patches", hint=f"1 to {MAX_PATCHES} of them"
            )
        names: set[str] = set()
        for number, patch in enumerate(self.patches):
            field = f"patches[{number}].name"
            if check_identifier(patch.name, field=field) in names:
                raise InvalidRequest(f"{patch.name[:64]!r} names two patches", field=field)
            names.add(patch.name)


_NEWER_FIELDS: Mapping[str, object] = {
    "memory": MemoryOptions(),
    "context_options": ContextOptions(),
    "workflow": None,
    "patches": (),
    "seats": (),
    "max_agents": 0,
    "probes": False,
    "custom_params": dict[str, str](),
}
_NEWER_PARTS: Mapping[str, Mapping[str, object]] = {
    "constraints": {"require_verified": False},
    "environment": {"test_command": "", "image_credential": ""},
    "context_options": {"include_repository_map": True, "include_instructions": True},
}


def execution_id(*, tenant: str, kind: TaskKind, task_id: str, attempt: int) -> str:
    """The id that one attempt at one task always has, on whichever replica it is computed."""
    return str(uuid.uuid5(_EXECUTION_NAMESPACE, "\x1f".join((tenant, kind, task_id, str(attempt)))))


def check_description(text: str) -> None:
    """Check the description of a task. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("the task description is empty", field="task_description")
    if (size := len(text.encode())) > MAX_DESCRIPTION_BYTES:
        hint = f"at most {MAX_DESCRIPTION_BYTES}; put long material into a file of the repository"
        raise InvalidRequest(f"the task description has {size} bytes", field="task_description", hint=hint)


def _check_range(value: float, *, field: str, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRequest(f"{field} is {value:g}", field=field, hint=f"between {low:g} and {high:g}")
