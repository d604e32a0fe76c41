"""Every boundary of the fleet, as Protocols. What stands behind them is in `adapters` and `sandbox`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from swe_ai_fleet.domain.assignment import Assignment
from swe_ai_fleet.domain.audit import SignedHead
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import Delivered, Diff
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.context import Change, ContextRequest, GatheredContext, StoredChange
from swe_ai_fleet.domain.environment import Environment, EnvironmentProposal
from swe_ai_fleet.domain.event import Event, EventBody, StoredEvent, Writer
from swe_ai_fleet.domain.memory import Memory, MemoryScope, Recollection
from swe_ai_fleet.domain.message import ModelCapabilities, ModelReply, ModelRequest, TextDelta
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef, Task
from swe_ai_fleet.domain.test_run import TestRun

BUNDLE_BRANCH = "base"
"""The one branch of such a bundle; it stands at its commit."""
OURS = "integration"
THEIRS = "subtask"
"""What conflict markers call the two sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryBundle:
    """A git bundle with the branch `base` at `commit`, and with everything that it stands on.

    Where it is `without_history`, `commit` has the same files as the commit that was asked for, and no parents.
    """

    commit: str
    data: bytes
    without_history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """A patch against `base`, to be merged into `head`; the result is a commit on top of `head`.

    `since` is the commit that whoever has the location has too: bundles hold what comes after it. `at` (ISO 8601) is
    the commit's date, so that the same request makes the same commit.
    """

    execution_id: str
    head: PinnedRepository
    base: PinnedRepository
    patch: bytes
    since: str
    message: str
    author_name: str
    author_email: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What a merge came to: `commit`, and a git bundle of what leads to it from `since`.

    Without `conflicts` the commit is the merged result (the head itself where the patch adds nothing to it). With them
    it is a draft for somebody to finish: on top of the head, everything merged that could be, and conflict markers in
    the rest; `conflicts` are its files, `report` says in words what is wrong, `ours` and `theirs` are what both sides
    changed in them since their common commit, as diffs.
    """

    commit: str
    bundle: bytes
    conflicts: tuple[str, ...] = ()
    report: str = ""
    ours: bytes = b""
    theirs: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A commit for those who can't reach it: a patch against an earlier one, and a bundle with a branch at it."""

    patch: bytes
    bundle: bytes


T = TypeVar("T")


class ChatModel(Protocol):
    """A chat model behind an OpenAI-compatible server."""

    async def probe(self) -> ModelCapabilities:
        """What the server can do, asked once and remembered. Raises ModelError."""
        ...

    async def ping(self) -> None:
        """Whether the server answers now. Raises ModelUnavailable, ModelRejected."""
        ...

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One completion. Raises ContextTooLong, ModelRejected, ModelUnavailable (after its retries)."""
        ...


Hear = Callable[[bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimeout:
    """How long calls wait while no model server serves, None: as the operator set.

    `hear` is told True once that has gone on for a while, and False when a server serves or the call ends.
    """

    seconds: float | None = None
    hear: Hear | None = None


@runtime_checkable
class ModelSessions(Protocol):
    """A model behind several servers; a run stays with the one that has its prompts cached, as long as it can."""

    def session(
        self, key: str, *, tenant: str = "", priority: int = 0, timeout: CallTimeout | None = None
    ) -> ChatModel:
        """The model for one run; the same key is the same server. Where calls wait, `tenant` says whose turn it is."""
        ...


class Workspace(Protocol):
    """A directory that commands run in, inside the sandbox."""

    @property
    def root(self) -> Path:
        """Where the directory lies on this host. Untrusted content: go through `tools.paths` to touch it."""
        ...

    @property
    def mount(self) -> str:
        """Where commands see it (`/workspace`)."""
        ...

    @property
    def environment(self) -> Environment: ...

    async def run(self, command: Command) -> CommandResult:
        """Run a command to its end. Every process it started is dead when this returns or is cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A clone as it stood. `commit` holds its tree, untracked files included, on top of `head`.

    `bundle` is a git bundle of both, as far as the base commit lacks them; empty where nothing differs from it.
    `branch` is empty where HEAD was detached.
    """

    commit: str
    head: str
    branch: str = ""
    bundle: bytes = b""


class Checkpoints(Protocol):
    """The work in a clone put away, and brought back in another one."""

    async def checkpoint(self) -> Checkpoint:
        """HEAD and the tree as they stand, untracked files included, ignored ones and the index left out."""
        ...

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Bring a clean clone of the same commit to where a checkpoint was taken. Raises PreconditionFailed."""
        ...

    async def bundle(self, *, max_bytes: int) -> RepositoryBundle:
        """The base commit as a git bundle, without its history where that is larger. Raises ResourceExhausted."""
        ...


class Clone(Workspace, Checkpoints, Protocol):
    """A workspace that holds a git clone at a known commit."""

    @property
    def base_commit(self) -> str: ...

    async def diff(self) -> Diff:
        """Everything that differs from the base commit, committed or not, untracked files included."""
        ...

    async def apply(self, patch: bytes, *, branch: str = "") -> None:
        """Apply a patch to the tree and the index. Raises PatchRejected; then nothing has changed.

        With a `branch` the tree is first brought back to the base commit, and the patch is committed to that branch,
        which is then checked out; a patch that is rejected leaves the branch at the base commit.
        """
        ...

    async def head(self) -> tuple[str, str]:
        """(commit, branch) of HEAD as the agent left it; the branch is empty when detached."""
        ...


class WorkspaceProvider(Protocol):
    """Repositories of one node: caches, seeds, clones, environments."""

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """Resolve a repository to a commit. Raises InvalidRequest, PreconditionFailed, Unavailable with `field`."""
        ...

    async def pin_image(self, tenant: str, spec: EnvironmentSpec) -> EnvironmentSpec:
        """The same with the digest of its image, if it has one, as of now. Raises as `pin`."""
        ...

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """The environment for it, built in the sandbox or taken from the cache. Raises PreconditionFailed."""
        ...

    def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AbstractAsyncContextManager[Clone]:
        """A clean clone of its own, removed at the end of the context."""
        ...

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """Commit the patch on a branch of the target repository. Doing it again changes nothing.

        The user's working tree, index and current branch are not touched. Raises PatchRejected, PreconditionFailed,
        Unavailable.
        """
        ...

    async def release(self, execution_id: str) -> None:
        """Forget what was kept for an execution (pins, seeds, leftover clones)."""
        ...


class EvidenceWorkspaces(WorkspaceProvider, Protocol):
    """What evidence wants of a node's repositories: patches are looked at as commits of the fleet's own, too."""

    async def patched(self, execution_id: str, repository: PinnedRepository, patch: bytes) -> PinnedRepository:
        """A commit with a patch on a pinned commit, always the same one, on this node. Raises PatchRejected."""
        ...


class KnownRecipes(Protocol):
    """What environment runs found out, by tenant and by all that an environment is made from."""

    async def find(self, tenant: str, key: str) -> EnvironmentProposal | None:
        """What is known under a key; None where nothing is, or the store does not answer."""
        ...

    async def keep(self, tenant: str, key: str, proposal: EnvironmentProposal) -> None:
        """Let everybody of the tenant use it from now on. Raises Unavailable."""
        ...


class Workshops(Protocol):
    """Clones in which environments can be changed."""

    def workshop(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AbstractAsyncContextManager[Clone]:
        """A clone with a copy of its environment that commands may write to, and the network of set-up commands.

        Raises PreconditionFailed where this node's sandbox cannot show one.
        """
        ...


class Baselines(Protocol):
    """What is known of untouched commits."""

    async def known(self, task: Task, environment: Environment) -> TestRun | None:
        """How the tests of a task's repository ended on the untouched commit; None while nobody has run them."""
        ...


class Branches(Protocol):
    """Commits of the fleet's own making: merged, named, taken away. No work tree of anybody's is touched."""

    async def merge(self, request: MergeRequest) -> Merge:
        """A three-way merge. Doing it again makes the same commit. Raises PatchRejected, PreconditionFailed."""
        ...

    async def publish(
        self, execution_id: str, repository: PinnedRepository, since: str, delivery: Delivery
    ) -> Delivered:
        """Put `delivery.branch` of the target repository at a pinned commit of ours. Doing it again changes nothing.

        `since` is a commit that the target has. Raises as `WorkspaceProvider.deliver` does.
        """
        ...

    async def keep(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, ref: str, message: str
    ) -> Delivered:
        """A patch as a commit under a reference below `refs/fleet/`, which is no branch. Raises PatchRejected."""
        ...

    async def export(self, repository: PinnedRepository, base: str, branch: str, *, since: str = "") -> Exported:
        """What a pinned commit adds: to `base` as a patch, to `since` (empty: the base) as a bundle with a branch.

        Raises ResourceExhausted where that is too large, PreconditionFailed where it does not build on them.
        """
        ...


class Repositories(WorkspaceProvider, Branches, Protocol):
    """Everything that an orchestration wants of its repositories."""


class Journal(Protocol):
    """The one writer of one subject: appends in order, one publish in flight."""

    async def append(self, body: EventBody) -> Event:
        """Write an event and everything posted before it; durable on return. Raises Fenced, Unavailable."""
        ...

    def post(self, body: EventBody) -> Event:
        """Queue an event behind the others. It is durable once a later `append` or `flush` returns."""
        ...

    async def flush(self) -> None:
        """Wait until everything posted is durable. Raises as `append` does."""
        ...


class EventLog(Protocol):
    """The append-only log of all executions."""

    def journal(self, writer: Writer, *, fresh: bool = False) -> AbstractAsyncContextManager[Journal]:
        """The journal of a writer's subject; leaving the context flushes it.

        With `fresh` the subject must be empty: the first append raises AlreadyExists where it is not. Otherwise the
        journal continues behind the subject's last event and thereby fences whoever wrote it before; entering raises
        Fenced where that is of the writer's own generation or a higher one.
        """
        ...

    async def tell(self, writer: Writer, body: EventBody) -> StoredEvent:
        """Append one event to a subject that many may write, behind whatever stands there; fences nobody.

        Raises Unavailable, ResourceExhausted.
        """
        ...

    def read(
        self, tenant: str, execution_id: str, *, agent_id: str = "", from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[StoredEvent, None]:
        """An execution's events from a sequence number on; with `follow`, new ones as they come, without an end.

        With an `agent_id` only that writer's.
        """
        ...

    def heads(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredEvent | None, None]:
        """What executions themselves say and what callers say to them (not their agents), of all tenants, oldest first.

        With `follow` a None marks the moment when everything stored before the call has been yielded.
        """
        ...


class HeadSigner(Protocol):
    """Holds the key that signs where audit chains stand."""

    def signed(self, head: SignedHead, execution_id: str) -> SignedHead:
        """The head of an execution's chain with its signature and the id of the key."""
        ...


class BlobStore(Protocol):
    """Large content by digest."""

    async def put(self, tenant: str, execution_id: str, data: bytes, media_type: str, *, place: str = "") -> BlobRef:
        """Store content: under its digest, where it stays, or in a `place` of one writer's, whose content it replaces.

        Raises ResourceExhausted, Unavailable.
        """
        ...

    async def get(self, ref: BlobRef) -> bytes:
        """The content. Raises NotFound."""
        ...

    async def discard(self, ref: BlobRef) -> None:
        """Give back the room of what was put into a place. Doing it again changes nothing. Raises Unavailable."""
        ...


class LiveText(Protocol):
    """Where people listen to models while they speak. Nothing of it is kept."""

    def is_followed(self, tenant: str, execution_id: str) -> bool:
        """Whether anybody listens to an execution now."""
        ...

    def say(self, tenant: str, execution_id: str, delta: TextDelta) -> None:
        """Pass a piece of text on; it may be lost."""
        ...


class ResultBus(Protocol):
    """Where subscribers hear of results."""

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        """Publish a result on `agent.results.<task_id>` (with an agent id: `.<agent_id>` behind it), once.

        False when this execution's own result stands there already.
        """
        ...


class Fleet(Protocol):
    """Where agents and checks run."""

    async def run(self, assignment: Assignment[T]) -> T:
        """Carry out one assignment on a node with room. Cancelling it ends what works on it, and its processes.

        Raises AgentLost where the process that worked on it is lost, FleetErrors of the work itself.
        """
        ...


class SecretMask(Protocol):
    """Replaces secrets in text that leaves the process."""

    def __call__(self, text: str) -> str: ...


class Replicas(Protocol):
    """The orchestrators that share a log."""

    @property
    def me(self) -> str:
        """This one's name."""
        ...

    def alive(self) -> Collection[str]:
        """Those that hold a lease, as far as is known here; empty while that cannot be known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueEntry:
    """A stored value. `revision` grows with every change in the store."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueChange:
    """A value as it was stored, or (None) removed. Of several changes of a key only the last may be told."""

    key: str
    value: bytes | None
    revision: int


class KeyValue(Protocol):
    """Small values by key, the same for every process. Keys are of letters, digits, `-`, `_`, `=` and `.`."""

    async def get(self, key: str) -> KeyValueEntry | None:
        """The value, None where there is none (any more). Raises Unavailable."""
        ...

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """Store a value; its revision. With a `revision` only on that one (0: only where there is none).

        Raises Fenced where somebody else changed it, Unavailable.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove a value; nothing happens where there is none. Raises Unavailable."""
        ...

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        """Everything under keys that begin so, by key. Raises Unavailable."""
        ...

    def changes(self, *, from_revision: int = 0, follow: bool = False) -> AsyncGenerator[KeyValueChange | None, None]:
        """What was stored and removed from a revision on, in that order, the last of each key.

        With `follow` a None marks the moment when everything stored before the call has been yielded. Raises
        Unavailable; once following there is no such end.
        """
        ...


class ChangeLog(Protocol):
    """The append-only stream of what projects know of themselves; see `domain.context`."""

    async def append(self, change: Change) -> StoredChange:
        """Write a change, if its `version` is the next of its story; a record of work (version 0) once an execution.

        Raises Fenced where the version is not the next, AlreadyExists for a second record, Unavailable.
        """
        ...

    def read(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredChange | None, None]:
        """The changes of all tenants from a sequence number on, oldest first.

        With `follow` a None marks the moment when everything stored before the call has been yielded.
        """
        ...


class Embedder(Protocol):
    """Turns texts into vectors that lie near each other where the texts mean the same."""

    @property
    def name(self) -> str:
        """The space of the vectors: only those of one name can be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector of length 1 for each text. Raises ModelUnavailable, ModelRejected."""
        ...


class Memories(Protocol):
    """What is remembered."""

    async def remember(self, memory: Memory) -> bool:
        """Keep a memory, its secrets masked; False where it was known. Raises InvalidRequest, ResourceExhausted."""
        ...

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        """What fits a question, best first, or the newest for an empty one. Raises InvalidRequest, Unavailable."""
        ...

    async def forget(self, scope: MemoryScope, memory_ids: Collection[str] = ()) -> int:
        """Remove these memories of a scope, or (none named) all of it; how many. Raises InvalidRequest, Unavailable."""
        ...


class ContextSource(Protocol):
    """Where the project's context comes from."""

    async def gather(self, request: ContextRequest) -> GatheredContext:
        """What fits the budget, the most relevant first. Raises InvalidRequest, NotFound, Unavailable."""
        ...
