"""`WorkflowExecutor`: runs a workflow in this process, which watches and steers it; optionally with a state file."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import inspect
import json
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.workflow import JsonValue, NodeStatus, Workflow
from swe_ai_fleet.extensions.workflows.checking import checked
from swe_ai_fleet.extensions.workflows.engine import Steering, WorkflowRun
from swe_ai_fleet.extensions.workflows.local_nodes import Approve, LocalNodes
from swe_ai_fleet.extensions.workflows.runner import (
    ExecutionState,
    NodeRunner,
    Update,
    checked_inputs,
    end_update,
    log_update,
    node_state,
    node_update,
    started_update,
)
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.runtime.default_tools import library_registry
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.registry import ToolRegistry

VERSION = 1
MAX_BYTES = 256 * 1024 * 1024


class StateFile:
    """An open state file; `known` holds its updates from before, `execution_id` is that of its run."""

    def __init__(self, descriptor: int, execution_id: str, known: Mapping[str, NodeUpdated], mask: SecretMask) -> None:
        self.execution_id = execution_id
        self.known = known
        self._descriptor = descriptor
        self._mask = mask

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, workflow: Workflow, inputs: Mapping[str, JsonValue], *, mask: SecretMask
    ) -> AsyncGenerator[StateFile]:
        """Open or begin the file of a run.

        Its content outlives the process, not a loss of power: lines are not synced to the disk one by one.

        Args:
            path: Its path; the file is readable for its owner alone.
            workflow: The workflow to run.
            inputs: Its inputs; the file holds only a digest of them.
            mask: Hides secrets in the inputs of nodes. Outputs are stored unmasked: a resumed run needs them.

        Raises:
            PreconditionFailed: The file is another run's, no state file, too large, or open in another process.
        """
        digest = hashlib.sha256(to_json(workflow) + b"\0" + json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        file = await asyncio.to_thread(_opened, path, digest, mask)
        try:
            yield file
        finally:
            os.close(file._descriptor)

    async def append(self, update: NodeUpdated) -> None:
        """Append an update. Raises OSError."""
        await asyncio.to_thread(self._save, update)

    def _save(self, update: NodeUpdated) -> None:
        _write(self._descriptor, to_json(replace(update, inputs=self._mask(update.inputs))) + b"\n")


def _opened(path: Path, digest: str, mask: SecretMask) -> StateFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PreconditionFailed(
                f"another run is using {path}", field="state", hint="use another file for it"
            ) from error
        if os.fstat(descriptor).st_size > MAX_BYTES:
            raise PreconditionFailed(f"{path} has more than {MAX_BYTES} bytes", field="state")
        return _read(descriptor, path, digest, mask)
    except BaseException:
        os.close(descriptor)
        raise


def _read(descriptor: int, path: Path, digest: str, mask: SecretMask) -> StateFile:
    parts: list[bytes] = []
    while part := os.read(descriptor, 1024 * 1024):
        parts.append(part)
    data = b"".join(parts)
    whole = data[: data.rfind(b"\n") + 1]
    # The last line may be incomplete, if its process ended while writing it; it never took effect.
    os.ftruncate(descriptor, len(whole))
    lines = whole.splitlines()
    if not lines:
        execution_id = uuid4().hex
        header = {"version": VERSION, "execution_id": execution_id, "run": digest}
        _write(descriptor, json.dumps(header).encode() + b"\n")
        return StateFile(descriptor, execution_id, {}, mask)
    try:
        head: Any = json.loads(lines[0])
        version, execution_id, run = head["version"], str(head["execution_id"]), head["run"]
        updates = [from_json(NodeUpdated, line) for line in lines[1:]]
    except (ValueError, TypeError, KeyError) as error:
        raise PreconditionFailed(f"{path} is not a workflow state", field="state", hint="use another file") from error
    if (version, run) != (VERSION, digest):
        raise PreconditionFailed(
            f"{path} belongs to another workflow or to other inputs",
            field="state",
            hint="use another file, or remove this one",
        )
    return StateFile(descriptor, execution_id, {update.node_id: update for update in updates}, mask)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


AT_ONCE = 16
"""Most agents and tools running at the same time; a map without `max_parallel` sets no limit."""

OnUpdate = Callable[[Update], Awaitable[None] | None]


@dataclass(slots=True)
class _Feed:
    """The updates of one execution, for any number of readers at any time."""

    updates: list[Update] = field(default_factory=list[Update])
    sent: int = 0
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class WorkflowExecutor:
    """Runs a workflow in this process: agents that answer, tools from the registry, approvals by a callback.

    One execution at a time. Agents that work on repositories need a fleet, which runs the same files (`fleet workflow
    run`).

    Args:
        workflow: The workflow to run; it is checked.
        stream_updates: Whether `updates` yields the updates of an execution.
        approve: Called by approval nodes with a `NodeApproval`; sync or async, returns a decision, True or False.
        on_update: Called with each update, sync or async; its exceptions end the execution.
        state: A file with the run's state. An execution with the same workflow and inputs continues from it: completed
            nodes are not run again, failed ones are retried. Without it nothing outlives the process.
        workflows: The workflows that sub-workflow nodes may name.
        registry: The tools; without it those of the default registry.
        model_params: As on FunctionCallingAgent.
        runner: Runs the nodes instead, for callers with their own means.
        settings: The model's address and all other settings; read from the environment when not given.

    Raises:
        InvalidWorkflow: With every fault of the workflow.
    """

    def __init__(
        self,
        workflow: Workflow,
        stream_updates: bool = True,
        *,
        approve: Approve | None = None,
        on_update: OnUpdate | None = None,
        state: str | Path | None = None,
        workflows: Mapping[str, Workflow] | None = None,
        registry: ToolRegistry | None = None,
        model_params: Mapping[str, object] | None = None,
        runner: NodeRunner | None = None,
        settings: Settings | None = None,
    ) -> None:
        tools = registry or library_registry(settings)
        chosen = settings or Settings()
        names = None if runner is not None else tools.get_all_tools()
        self.workflow = checked(workflow, tools=names, workflows=workflows or {})
        self.stream_updates = stream_updates
        self._on_update = on_update
        self._path = None if state is None else Path(state)
        self._mask = secret_mask(chosen)
        self._feed = _Feed()
        self._started = asyncio.Event()
        self._steering = Steering()
        self._run: WorkflowRun | None = None
        self._execution_id = ""
        self._local = LocalNodes(
            workflow.name,
            registry=tools,
            approve=approve,
            mask=self._mask,
            log=self._log,
            model_params=model_params,
            settings=chosen,
        )
        self._runner = runner or self._local
        self._running = False

    def execute(self, inputs: Mapping[str, JsonValue] | None = None) -> Coroutine[Any, Any, ExecutionState]:
        """Run the workflow to its end.

        Returns:
            The final state: completed with its outputs, or failed, rejected or cancelled with an `error`; all nodes.

        Raises:
            InvalidRequest: The inputs are not those that the workflow declares.
            PreconditionFailed: An execution is already running, or the state file is another run's.
        """
        if self._running:
            raise PreconditionFailed("an execution is running", hint="wait for it, or create another executor")
        values = checked_inputs(self.workflow, inputs or {})
        self._feed, self._steering = _Feed(), Steering(holding=self._steering.holding)
        self._started.set()
        return self._execute(values)

    async def updates(self) -> AsyncGenerator[Update]:
        """The updates of the execution that began last, from its beginning to its end; waits for one to begin.

        Raises PreconditionFailed where the executor was made without `stream_updates`.
        """
        if not self.stream_updates:
            raise PreconditionFailed(
                "updates are disabled", field="stream_updates", hint="create the executor with stream_updates=True"
            )
        await self._started.wait()
        feed, at = self._feed, 0
        while True:
            changed = feed.changed
            while at < len(feed.updates):
                at += 1
                yield feed.updates[at - 1]
            if feed.ended:
                return
            await changed.wait()

    @property
    def state(self) -> ExecutionState:
        """The current state of the execution that began last. Raises PreconditionFailed before the first one."""
        return self._current.state

    @property
    def paused(self) -> tuple[str, ...]:
        """The ids of the paused nodes."""
        if self._run is None:
            return ()
        return tuple(name for name, each in self._run.state.nodes.items() if each.status is NodeStatus.PAUSED)

    def pause(self) -> None:
        """Pause every node that has not begun; before `execute`, from the start."""
        self._steering.pause()

    def step(self, node_id: str = "") -> None:
        """Release one paused node; without an id all nodes paused now. Later nodes are paused."""
        self._steering.step(node_id)

    def continue_(self) -> None:
        """Release all paused nodes, up to the next breakpoint."""
        self._steering.proceed()

    def inspect(self, node_id: str) -> Mapping[str, JsonValue]:
        """A node's state: status, attempt, `inputs` with references resolved, output, error.

        Raises:
            NotFound: The node has not started.
        """
        nodes = self._current.state.nodes
        if node_id not in nodes:
            raise NotFound(f"the node {node_id!r:.80} has not started", field="node_id", hint=", ".join([*nodes][:20]))
        return node_state(nodes[node_id])

    def cancel(self, reason: str = "") -> None:
        """Stop the running execution; `execute` returns a cancelled state."""
        self._current.cancel(reason)

    @property
    def _current(self) -> WorkflowRun:
        if self._run is None:
            raise PreconditionFailed("no execution has started")
        return self._run

    async def _execute(self, inputs: Mapping[str, JsonValue]) -> ExecutionState:
        if self._running:
            raise PreconditionFailed("an execution is running", hint="wait for it, or create another executor")
        self._running, feed = True, self._feed
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._local.close)
                file = None
                if self._path is not None:
                    opened = StateFile.open(self._path, self.workflow, inputs, mask=self._mask)
                    file = await stack.enter_async_context(opened)
                self._execution_id = file.execution_id if file is not None else uuid4().hex
                return await self._journaled_run(inputs, file)
        finally:
            self._running = False
            feed.ended = True
            feed.wake()

    async def _journaled_run(self, inputs: Mapping[str, JsonValue], file: StateFile | None) -> ExecutionState:
        async def journal(update: NodeUpdated) -> None:
            if file is not None:
                await file.append(update)
            await self._publish(node_update(update))

        updates = {} if file is None else {name: _reset_failure(each) for name, each in file.known.items()}
        self._run = run = WorkflowRun(
            self.workflow,
            inputs,
            runner=self._runner,
            journal=journal,
            known=updates,
            steering=self._steering,
            at_once=AT_ONCE,
        )
        begun = time.monotonic()
        await self._publish(started_update(self.workflow.name))
        ended = await run.run()
        await self._publish(end_update(ended, duration_ms=round((time.monotonic() - begun) * 1000)))
        return ended

    async def _publish(self, message: Mapping[str, object]) -> None:
        self._feed.sent += 1
        head = {
            "execution_id": self._execution_id,
            "sequence": self._feed.sent,
            "at_ms": time.time_ns() // 1_000_000,
        }
        update = cast("Update", {"type": message["type"], **head, **message})
        if self.stream_updates:
            self._feed.updates.append(update)
            self._feed.wake()
        if self._on_update is not None:
            awaited = self._on_update(update)
            if inspect.isawaitable(awaited):
                await awaited

    async def _log(self, node_id: str, message: str) -> None:
        await self._publish(log_update("info", self._mask(message), node_id))


def _reset_failure(update: NodeUpdated) -> NodeUpdated:
    """The update with which a new run begins: a failed node is run again, with all its retries.

    A failed node after which the run continued has an output, and stays failed.
    """
    if update.status is NodeStatus.FAILED and not update.output:
        return replace(update, status=NodeStatus.PENDING, failures=0)
    return update
