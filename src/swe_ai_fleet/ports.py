"""Every boundary of the fleet, as Protocols. Their implementations are in `adapters` and `sandbox`."""

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
"""The only branch of a `RepositoryBundle`, at its commit."""
OURS = "integration"
THEIRS = "subtask"
"""The names of the two sides in conflict markers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryBundle:
    """A git bundle with the branch `base` at `commit`, and all of its ancestors.

    If it is `without_history`, `commit` has the same files as the requested commit, and no parents.
    """

    commit: str
    data: bytes
    without_history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """A patch against `base`, to be merged into `head`; the result is a commit on top of `head`.

    `since` is a commit that the repository's location has: bundles hold the commits after it. `at` (ISO 8601) is the
    commit's date, so that the same request makes the same commit.
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
    """The result of a merge: `commit`, and a git bundle of the commits from `since` to it.

    Without `conflicts` the commit is the merged result (the head itself where the patch adds nothing to it). With them
    it is a draft to be finished: on top of the head, with conflict markers where merging failed; `conflicts` are these
    files, `report` is git's, `ours` and `theirs` are the changes of both sides in them since their common commit, as
    diffs.
    """

    commit: str
    bundle: bytes
    conflicts: tuple[str, ...] = ()
    report: str = ""
    ours: bytes = b""
    theirs: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A commit for callers without access to it: a patch against an earlier one, and a bundle with a branch at it."""

    patch: bytes
    bundle: bytes


T = TypeVar("T")


class ChatModel(Protocol):
    """A chat model behind an OpenAI-compatible server."""

    async def probe(self) -> ModelCapabilities:
        """The capabilities of the server, probed once and remembered. Raises ModelError."""
        ...

    async def ping(self) -> None:
        """Check that the server answers now. Raises ModelUnavailable, ModelRejected."""
        ...

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One completion. Raises ContextTooLong, ModelRejected, ModelUnavailable (after its retries)."""
        ...


Hear = Callable[[bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimeout:
    """How long calls wait while no model server is available, None: the operator's setting.

    `hear` is called with True after a while of waiting, and with False when a server is available or the call ends.
    """

    seconds: float | None = None
    hear: Hear | None = None


@runtime_checkable
class ModelSessions(Protocol):
    """A model behind several servers; a run stays with the one that has its prompts cached, as long as possible."""

    def session(
        self, key: str, *, tenant: str = "", priority: int = 0, timeout: CallTimeout | None = None
    ) -> ChatModel:
        """The model for one run; the same key gets the same server. Waiting calls take turns by `tenant`."""
        ...


class Workspace(Protocol):
    """A directory that commands run in, inside the sandbox."""

    @property
    def root(self) -> Path:
        """The directory's path on this host. Untrusted content: access it only through `tools.paths`."""
        ...

    @property
    def mount(self) -> str:
        """The directory's path for commands (`/workspace`)."""
        ...

    @property
    def environment(self) -> Environment: ...

    async def run(self, command: Command) -> CommandResult:
        """Run a command to its end. Every process it started is dead when this returns or is cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a clone. `commit` holds its tree, untracked files included, on top of `head`.

    `bundle` is a git bundle of both, as far as the base commit lacks them; empty where nothing differs from it.
    `branch` is empty where HEAD was detached.
    """

    commit: str
    head: str
    branch: str = ""
    bundle: bytes = b""


class Checkpoints(Protocol):
    """Saves the work in a clone, and restores it in another one."""

    async def checkpoint(self) -> Checkpoint:
        """The current HEAD and tree, with untracked files, without ignored ones and the index."""
        ...

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint in a clean clone of the same commit. Raises PreconditionFailed."""
        ...

    async def bundle(self, *, max_bytes: int) -> RepositoryBundle:
        """The base commit as a git bundle, without its history where that is larger. Raises ResourceExhausted."""
        ...


class Clone(Workspace, Checkpoints, Protocol):
    """A workspace that holds a git clone at a known commit."""

    @property
    def base_commit(self) -> str: ...

    async def diff(self) -> Diff:
        """All differences from the base commit, committed or not, with untracked files."""
        ...

    async def apply(self, patch: bytes, *, branch: str = "") -> None:
        """Apply a patch to the tree and the index. Raises PatchRejected; then nothing has changed.

        With a `branch` the tree is first reset to the base commit, and the patch is committed to that branch, which is
        then checked out; a rejected patch leaves the branch at the base commit.
        """
        ...

    async def head(self) -> tuple[str, str]:
        """The commit and branch of the current HEAD; the branch is empty when detached."""
        ...


class WorkspaceProvider(Protocol):
    """Repositories of one node: caches, seeds, clones, environments."""

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """Resolve a repository to a commit. Raises InvalidRequest, PreconditionFailed, Unavailable with `field`."""
        ...

    async def pin_image(self, tenant: str, spec: EnvironmentSpec) -> EnvironmentSpec:
        """The specification with the current digest of its image, if it has one. Raises as `pin`."""
        ...

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """The environment of a repository, built in the sandbox or from the cache. Raises PreconditionFailed."""
        ...

    def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AbstractAsyncContextManager[Clone]:
        """A clean clone of its own, removed at the end of the context."""
        ...

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """Commit the patch on a branch of the target repository. A second call changes nothing.

        The user's working tree, index and current branch are not touched. Raises PatchRejected, PreconditionFailed,
        Unavailable.
        """
        ...

    async def release(self, execution_id: str) -> None:
        """Remove the data of an execution (pins, seeds, leftover clones)."""
        ...


class EvidenceWorkspaces(WorkspaceProvider, Protocol):
    """The repositories of a node as evidence needs them: patches can become commits of the fleet's own."""

    async def patched(self, execution_id: str, repository: PinnedRepository, patch: bytes) -> PinnedRepository:
        """The commit of a patch on a pinned commit, on this node, the same each time. Raises PatchRejected."""
        ...


class KnownRecipes(Protocol):
    """The proposals of environment runs, by tenant and a key of everything that an environment is made from."""

    async def find(self, tenant: str, key: str) -> EnvironmentProposal | None:
        """The proposal of a key; None where there is none, or the store does not answer."""
        ...

    async def keep(self, tenant: str, key: str, proposal: EnvironmentProposal) -> None:
        """Store a proposal for all executions of the tenant. Raises Unavailable."""
        ...


class Workshops(Protocol):
    """Clones with an environment that can be changed."""

    def workshop(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AbstractAsyncContextManager[Clone]:
        """A clone with a writable copy of its environment, and the network of set-up commands.

        Raises PreconditionFailed where this node's sandbox does not support that.
        """
        ...


class Baselines(Protocol):
    """Test runs of untouched commits."""

    async def known(self, task: Task, environment: Environment) -> TestRun | None:
        """The test run of a task's repository on the untouched commit; None while there is none."""
        ...


class Branches(Protocol):
    """Merges, publishes and exports commits of the fleet. No user's work tree is touched."""

    async def merge(self, request: MergeRequest) -> Merge:
        """A three-way merge. A second call makes the same commit. Raises PatchRejected, PreconditionFailed."""
        ...

    async def publish(
        self, execution_id: str, repository: PinnedRepository, since: str, delivery: Delivery
    ) -> Delivered:
        """Set `delivery.branch` of the target repository to a pinned commit of ours. A second call changes nothing.

        `since` is a commit that the target has. Raises as `WorkspaceProvider.deliver` does.
        """
        ...

    async def keep(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, ref: str, message: str
    ) -> Delivered:
        """Commit a patch under a reference below `refs/fleet/`, not a branch. Raises PatchRejected."""
        ...

    async def export(self, repository: PinnedRepository, base: str, branch: str, *, since: str = "") -> Exported:
        """A pinned commit as a patch against `base`, and as a bundle since `since` (empty: the base) with a branch.

        Raises ResourceExhausted where that is too large, PreconditionFailed where these are not its ancestors.
        """
        ...


class Repositories(WorkspaceProvider, Branches, Protocol):
    """The repositories of an orchestration."""


class Journal(Protocol):
    """The one writer of one subject: appends in order, one publish in flight."""

    async def append(self, body: EventBody) -> Event:
        """Write an event and everything posted before it; durable on return. Raises Fenced, Unavailable."""
        ...

    def post(self, body: EventBody) -> Event:
        """Queue an event after the others. It is durable once a later `append` or `flush` returns."""
        ...

    async def flush(self) -> None:
        """Wait until everything posted is durable. Raises as `append` does."""
        ...


class EventLog(Protocol):
    """The append-only log of all executions."""

    def journal(self, writer: Writer, *, fresh: bool = False) -> AbstractAsyncContextManager[Journal]:
        """The journal of a writer's subject; leaving the context flushes it.

        With `fresh` the subject must be empty: the first append raises AlreadyExists where it is not. Otherwise the
        journal continues after the subject's last event and thereby fences its earlier writer; entering raises Fenced
        where that event is of the writer's own generation or a higher one.
        """
        ...

    async def tell(self, writer: Writer, body: EventBody) -> StoredEvent:
        """Append one event to a subject that many may write, after its last event; fences nobody.

        Raises Unavailable, ResourceExhausted.
        """
        ...

    def read(
        self, tenant: str, execution_id: str, *, agent_id: str = "", from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[StoredEvent, None]:
        """An execution's events from a sequence number on; with `follow`, new ones as they arrive, without an end.

        With an `agent_id` only those of that writer.
        """
        ...

    def heads(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredEvent | None, None]:
        """The events of executions themselves and of callers to them (not of agents), of all tenants, oldest first.

        With `follow` a None marks the moment when everything stored before the call has been yielded.
        """
        ...


class HeadSigner(Protocol):
    """Holds the key that signs the heads of audit chains."""

    def signed(self, head: SignedHead, execution_id: str) -> SignedHead:
        """The head of an execution's chain with its signature and the id of the key."""
        ...


class BlobStore(Protocol):
    """Large content by digest."""

    async def put(self, tenant: str, execution_id: str, data: bytes, media_type: str, *, place: str = "") -> BlobRef:
        """Store content: under its digest for good, or in a `place` of one writer, replacing the content there.

        Raises ResourceExhausted, Unavailable.
        """
        ...

    async def get(self, ref: BlobRef) -> bytes:
        """The content. Raises NotFound."""
        ...

    async def discard(self, ref: BlobRef) -> None:
        """Remove content from a place. A second call changes nothing. Raises Unavailable."""
        ...


class LiveText(Protocol):
    """Streams the text of models to people while it is generated. Nothing of it is stored."""

    def is_followed(self, tenant: str, execution_id: str) -> bool:
        """Whether anyone follows the text of an execution now."""
        ...

    def say(self, tenant: str, execution_id: str, delta: TextDelta) -> None:
        """Send a piece of text to followers; it may be lost."""
        ...


class ResultBus(Protocol):
    """Publishes results to subscribers."""

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        """Publish a result on `agent.results.<task_id>` (with an agent id: followed by `.<agent_id>`), once.

        False when this execution's own result is there already.
        """
        ...


class Fleet(Protocol):
    """Runs agents and checks."""

    async def run(self, assignment: Assignment[T]) -> T:
        """Run one assignment on a node with room. Cancelling the call ends the work and its processes.

        Raises AgentLost where the process of the assignment is lost, FleetErrors of the work itself.
        """
        ...


class SecretMask(Protocol):
    """Replaces secrets in text that leaves the process."""

    def __call__(self, text: str) -> str: ...


class Replicas(Protocol):
    """The orchestrators that share a log."""

    @property
    def me(self) -> str:
        """The name of this orchestrator."""
        ...

    def alive(self) -> Collection[str]:
        """The names of those with a lease, as far as this process knows; empty while it cannot know."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueEntry:
    """A stored value. `revision` grows with every change in the store."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueChange:
    """A value as it was stored, or None: it was removed. Of several changes of a key only the last may be yielded."""

    key: str
    value: bytes | None
    revision: int


class KeyValue(Protocol):
    """Small values by key, the same for every process. Keys are of letters, digits, `-`, `_`, `=` and `.`."""

    async def get(self, key: str) -> KeyValueEntry | None:
        """The value, None where there is none. Raises Unavailable."""
        ...

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        """Store a value; returns its revision. With a `revision` only if that is the current one (0: there is none).

        Raises Fenced where it is not, Unavailable.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove a value, if there is one. Raises Unavailable."""
        ...

    async def entries(self, prefix: str = "") -> tuple[KeyValueEntry, ...]:
        """All entries whose keys have a prefix, by key. Raises Unavailable."""
        ...

    def changes(self, *, from_revision: int = 0, follow: bool = False) -> AsyncGenerator[KeyValueChange | None, None]:
        """The changes from a revision on, in order, the last of each key.

        With `follow` a None marks the moment when everything stored before the call has been yielded. Raises
        Unavailable; but not once it follows.
        """
        ...


class ChangeLog(Protocol):
    """The append-only stream of project knowledge; see `domain.context`."""

    async def append(self, change: Change) -> StoredChange:
        """Write a change, if its `version` is the next of its story; one record of work (version 0) an execution.

        Raises Fenced where the version is not the next, AlreadyExists for a second record, Unavailable.
        """
        ...

    def read(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredChange | None, None]:
        """The changes of all tenants from a sequence number on, oldest first.

        With `follow` a None marks the moment when everything stored before the call has been yielded.
        """
        ...


class Embedder(Protocol):
    """Turns texts into vectors that are near each other where the texts have similar meanings."""

    @property
    def name(self) -> str:
        """The name of the vector space: only vectors of the same space can be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector of length 1 for each text. Raises ModelUnavailable, ModelRejected."""
        ...


class Memories(Protocol):
    """Stores and searches memories."""

    async def remember(self, memory: Memory) -> bool:
        """Store a memory with its secrets masked; False if it exists. Raises InvalidRequest, ResourceExhausted."""
        ...

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        """The memories for a query, best first, or the newest for an empty one. Raises InvalidRequest, Unavailable."""
        ...

    async def forget(self, scope: MemoryScope, memory_ids: Collection[str] = ()) -> int:
        """Remove these memories of a scope, by default all; returns how many. Raises InvalidRequest, Unavailable."""
        ...


class ContextSource(Protocol):
    """Gathers the context of tasks."""

    async def gather(self, request: ContextRequest) -> GatheredContext:
        """The context within the budget, most relevant blocks first. Raises InvalidRequest, NotFound, Unavailable."""
        ...
