"""Runs a node to its end, with retries, waits and time limits.

Exceptions end a run or an attempt early. An update takes effect once it is in the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import Fenced, FleetError, InvalidRequest, ModelRejected, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.workflow import JsonValue, Node, NodeStatus
from swe_ai_fleet.extensions.workflows.conditions import holds
from swe_ai_fleet.extensions.workflows.references import NodeValue, ReferenceScope
from swe_ai_fleet.extensions.workflows.runner import NodeApproval, NodeOutcome, NodeRunner, exact_json, parsed_json

T = TypeVar("T")


class Ended(Exception):
    """The run ends."""


class NodeFailed(Ended):
    """A node failed without further retries, and the workflow does not continue on its error."""

    def __init__(self, node_id: str, error: str) -> None:
        super().__init__(f"{node_id}: {error}" if node_id else error)


class Rejected(Ended):
    """A person rejected an approval."""

    def __init__(self, node_id: str, text: str) -> None:
        super().__init__(f"{node_id} was rejected: {text}" if text else f"{node_id} was rejected")


class Cancelled(Ended):
    """The run was cancelled from outside."""


class TryFailed(Exception):
    """One attempt of a node failed; `again` says whether a retry could succeed, `usage` is the attempt's."""

    def __init__(self, error: str, *, again: bool = False, usage: Usage | None = None) -> None:
        super().__init__(error)
        self.again = again
        self.usage = usage or Usage()


@asynccontextmanager
async def together() -> AsyncGenerator[asyncio.TaskGroup]:
    """A task group that raises one error instead of a group: a fault takes precedence over an `Ended`."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        faults = [*errors.exceptions]
        raise next((each for each in faults if not isinstance(each, Ended)), faults[0]) from None


MAX_CHARS = 128_000_000
"""Of the outputs of all nodes of a run together, which it keeps in memory."""
Journal = Callable[[NodeUpdated], Awaitable[None]]


class NodeUpdates:
    """The last update of each node, by its id in the run.

    Args:
        journal: Awaited with each update, one at a time, to its end even when the caller is cancelled: so it is never
            unknown whether an update was written.
        known: The updates from the journal so far.
    """

    def __init__(self, journal: Journal, known: Mapping[str, NodeUpdated]) -> None:
        self.updates: dict[str, NodeUpdated] = dict(known)
        self._values: dict[str, NodeValue] = {}
        self._journal = journal
        self._turn = asyncio.Lock()
        self._chars = sum(len(each.output) for each in self.updates.values())

    async def put(self, update: NodeUpdated, output: JsonValue = None) -> None:
        """Journal an update; `output` is the value of its output text. Raises the journal's exceptions."""
        writing = asyncio.ensure_future(self._write(update, output))
        cancelled: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait((writing,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            writing.exception()
            raise cancelled
        writing.result()

    async def _write(self, update: NodeUpdated, output: JsonValue) -> None:
        async with self._turn:
            await self._journal(update)
            before = self.updates.get(update.node_id)
            self._chars += len(update.output) - (len(before.output) if before else 0)
            self.updates[update.node_id] = update
            self._values[update.node_id] = _value(update, output)

    def has_room(self, output: str) -> bool:
        """Whether one more output fits in memory."""
        return self._chars + len(output) <= MAX_CHARS

    def value(self, node_id: str) -> NodeValue:
        """The result of a node that ended. Raises PreconditionFailed where its output is not loaded."""
        if node_id not in self._values:
            update = self.updates[node_id]
            if not update.output and update.output_blob is not None:
                raise PreconditionFailed(
                    f"the output of node {node_id} is stored by reference only", hint="load it before the run continues"
                )
            output = parsed_json(update.output, f"the output of {node_id}") if update.output else None
            self._values[node_id] = _value(update, output)
        return self._values[node_id]

    def below(self, node_id: str) -> list[NodeUpdated]:
        """The last updates of nodes within another node that have not ended; an empty id means the whole run."""
        starts = (f"{node_id}[", f"{node_id}/") if node_id else ("",)
        return [each for name, each in self.updates.items() if name.startswith(starts) and not each.status.ended]

    @property
    def usage(self) -> Usage:
        """The total usage of all nodes."""
        return sum((each.usage for each in self.updates.values()), Usage())


def _value(update: NodeUpdated, output: JsonValue) -> NodeValue:
    return NodeValue(output=output, status=update.status.value, error=update.error, label=update.label)


MAX_WAIT_SECONDS = 600.0
_MAX_ERROR_CHARS = 2_000
_NOT_RETRIED = (InvalidRequest, NotFound, ModelRejected)

Sleep = Callable[[float], Awaitable[None]]
Work = Callable[[int, str], Awaitable[NodeOutcome]]
"""One attempt: (its number, the execution that an interrupted attempt before it began). Raises TryFailed."""
Stop = Callable[[str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStep:
    """A node in a run: its inputs (`shown`: as they are in the log), and its last update from before."""

    node: Node
    node_id: str
    inputs: Mapping[str, JsonValue]
    shown: str
    known: NodeUpdated | None

    def update(self, status: NodeStatus) -> NodeUpdated:
        """Its next update; a failed or interrupted attempt before it is counted."""
        update = NodeUpdated(node_id=self.node_id, status=status, inputs=self.shown)
        if self.known is None:
            return update
        # The usage of failed attempts counts too.
        update = replace(update, usage=self.known.usage)
        if self.known.status in (NodeStatus.PAUSED, NodeStatus.WAITING):
            return replace(update, attempt=self.known.attempt, failures=self.known.failures)
        return replace(update, attempt=self.known.attempt + 1, failures=self.known.failures)


class Tries:
    """Runs nodes to their end."""

    def __init__(self, runner: NodeRunner, record: NodeUpdates, sleep: Sleep, at_once: int = 0) -> None:
        self._runner = runner
        self._record = record
        self._sleep = sleep
        self._slots = asyncio.Semaphore(at_once) if at_once else nullcontext()

    async def paused(self, step: NodeStep) -> None:
        """Record that a node waits at a breakpoint."""
        if step.known is None or step.known.status is not NodeStatus.PAUSED:
            await self._record.put(step.update(NodeStatus.PAUSED))

    async def refused(self, node: Node, node_id: str, error: str, earlier: NodeUpdated | None) -> None:
        """Record that a node's inputs cannot be resolved."""
        base = earlier or NodeUpdated(node_id=node_id, status=NodeStatus.PENDING)
        await self._failed(node, replace(base, failures=base.failures + 1), error)

    async def branch(self, step: NodeStep, scope: ReferenceScope) -> None:
        """Choose the label of the first case that holds; empty where none does."""
        update, cases = step.update(NodeStatus.RUNNING), step.node.cases
        try:
            label = next((case.label for case in cases if case.when is None or holds(case.when, scope)), "")
        except InvalidRequest as error:
            await self._failed(step.node, replace(update, failures=update.failures + 1), str(error))
            return
        output = {"label": label}
        await self._completed(replace(update, label=label, output=exact_json(output, "its output")))

    async def approval(self, step: NodeStep) -> None:
        """Wait for a person. After a resumption the request is repeated, so that a decision made meanwhile counts."""
        node, update = step.node, step.update(NodeStatus.WAITING)

        async def asked() -> None:
            if step.known is None or step.known.status is not NodeStatus.WAITING:
                await self._record.put(update)

        approval = NodeApproval(
            node_id=step.node_id,
            prompt=str(step.inputs["prompt"]),
            description=node.description,
            timeout_seconds=node.timeout_seconds,
        )
        began = time.monotonic()
        try:
            decided = await self._limited(node, _outcome(self._runner.decide(approval, asked)))
        except TryFailed as error:
            update = replace(update, failures=update.failures + 1, duration_ms=_milliseconds_since(began))
            await self._failed(node, update, str(error))
            return
        decision = decided.decision.value
        output = {"decision": decision, "text": decided.text, "approver": decided.approver}
        text = exact_json(output, "its output")
        update = replace(update, label=decision, duration_ms=_milliseconds_since(began), output=text)
        await self._completed(update)

    async def work(self, step: NodeStep) -> None:
        """Run an agent or a tool node."""

        async def work(attempt: int, earlier: str) -> NodeOutcome:
            run = self._runner.run(step.node, step.inputs, node_id=step.node_id, attempt=attempt, earlier=earlier)
            return await _outcome(run)

        await self.run(step, work)

    async def run(self, step: NodeStep, work: Work, stop: Stop | None = None) -> None:
        """Run a node, with retries, until it completes or fails.

        Args:
            step: The node; an interrupted attempt counts as an attempt, not as a failure.
            work: Runs one attempt.
            stop: Awaited with the id and the reason after a failed attempt, to stop the nodes that it began.
        """
        node, update, earlier = step.node, step.update(NodeStatus.RUNNING), ""
        match step.known:
            case NodeUpdated(status=NodeStatus.RUNNING, execution_id=execution_id):
                earlier = execution_id
            case NodeUpdated(status=NodeStatus.PENDING, failures=failures) if failures:
                await self._sleep(_wait(node, failures))
            case _:
                pass
        # Maps and sub-workflows take no slot: holding one while their nodes wait for slots could deadlock.
        slots = self._slots if stop is None else nullcontext()
        while True:
            began = earlier or self._runner.execution_of(node, node_id=step.node_id, attempt=update.attempt)
            update = replace(update, status=NodeStatus.RUNNING, execution_id=began, error="")
            clock = time.monotonic()
            try:
                async with slots:
                    await self._record.put(update)
                    clock = time.monotonic()
                    done = await self._run_once(node, update, work, earlier)
            except TryFailed as error:
                failed, again, spent = str(error), error.again, error.usage
            else:
                return await self._completed(replace(done, duration_ms=_milliseconds_since(clock)))
            duration = _milliseconds_since(clock)
            update = replace(update, failures=update.failures + 1, duration_ms=duration, usage=update.usage + spent)
            if stop is not None:
                await stop(step.node_id, failed)
            if not again or update.failures > node.retries:
                return await self._failed(node, update, failed)
            await self._record.put(replace(update, status=NodeStatus.PENDING, error=failed[:_MAX_ERROR_CHARS]))
            await self._sleep(_wait(node, update.failures))
            update, earlier = replace(update, attempt=update.attempt + 1), ""

    async def _run_once(self, node: Node, update: NodeUpdated, work: Work, earlier: str) -> NodeUpdated:
        outcome = await self._limited(node, work(update.attempt, earlier))
        if outcome.error:
            raise TryFailed(outcome.error, again=outcome.again, usage=outcome.usage)
        try:
            output = exact_json(outcome.output, "its output")
        except InvalidRequest as error:
            raise TryFailed(str(error), usage=outcome.usage) from error
        if not self._record.has_room(output):
            raise TryFailed("with its output, the outputs of all nodes are too large to store", usage=outcome.usage)
        execution_id = outcome.execution_id or update.execution_id
        return replace(update, output=output, usage=update.usage + outcome.usage, execution_id=execution_id)

    async def _limited(self, node: Node, work: Awaitable[T]) -> T:
        limit = asyncio.timeout(node.timeout_seconds or None)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TryFailed(f"it took longer than {node.timeout_seconds:g} seconds", again=True) from error

    async def _completed(self, update: NodeUpdated) -> None:
        # This run continues with the value that a resumed run would read.
        output = parsed_json(update.output, "its output")
        await self._record.put(replace(update, status=NodeStatus.COMPLETED), output)

    async def _failed(self, node: Node, update: NodeUpdated, error: str) -> None:
        reason = error[:_MAX_ERROR_CHARS]
        output: JsonValue = {"error": reason} if node.on_error == "continue" else None
        text = exact_json(output, "its output") if output else ""
        await self._record.put(replace(update, status=NodeStatus.FAILED, error=reason, output=text), output)


async def _outcome(work: Awaitable[T]) -> T:
    """The result of the runner. Its faults fail the attempt, except Fenced, which ends the run."""
    try:
        return await work
    except Fenced:
        raise
    except FleetError as error:
        raise TryFailed(str(error), again=not isinstance(error, _NOT_RETRIED)) from error
    except TimeoutError as error:
        raise TryFailed(f"it timed out {error}".rstrip(), again=True) from error


def _wait(node: Node, failures: int) -> float:
    return min(node.retry_seconds * 2 ** min(failures - 1, 30), MAX_WAIT_SECONDS)


def _milliseconds_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
