"""What a run has journaled: each change stands there before it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.workflow import JsonValue
from swe_ai_fleet.workflows.references import NodeValue
from swe_ai_fleet.workflows.values import parsed_json

MAX_CHARS = 128_000_000
"""Of the outputs of all nodes of a run together: it keeps them in memory."""
Journal = Callable[[NodeUpdated], Awaitable[None]]


class Record:
    """The last update of each node, by its place in the run.

    Args:
        journal: Awaited with each change, one at a time and to its end even when the caller is cancelled: whether a
            change stands is then never in doubt.
        known: What was journaled before.
    """

    def __init__(self, journal: Journal, known: Mapping[str, NodeUpdated]) -> None:
        self.updates: dict[str, NodeUpdated] = dict(known)
        self._values: dict[str, NodeValue] = {}
        self._journal = journal
        self._turn = asyncio.Lock()
        self._chars = sum(len(each.output) for each in self.updates.values())

    async def put(self, update: NodeUpdated, output: JsonValue = None) -> None:
        """Journal a change; `output` is what its `output` says. Raises what the journal raises."""
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
        """Whether one more output can be kept."""
        return self._chars + len(output) <= MAX_CHARS

    def value(self, node_id: str) -> NodeValue:
        """What can be said of a node that ended. Raises PreconditionFailed where its output is not at hand."""
        if node_id not in self._values:
            update = self.updates[node_id]
            if not update.output and update.output_blob is not None:
                raise PreconditionFailed(
                    f"the output of node {node_id} is kept by reference only", hint="load it before the run goes on"
                )
            output = parsed_json(update.output, f"the output of {node_id}") if update.output else None
            self._values[node_id] = _value(update, output)
        return self._values[node_id]

    def below(self, node_id: str) -> list[NodeUpdated]:
        """The nodes within another one that have not ended; within the run itself for an empty id."""
        starts = (f"{node_id}[", f"{node_id}/") if node_id else ("",)
        return [each for name, each in self.updates.items() if name.startswith(starts) and not each.status.ended]

    @property
    def usage(self) -> Usage:
        """What all nodes took together."""
        return sum((each.usage for each in self.updates.values()), Usage())


def _value(update: NodeUpdated, output: JsonValue) -> NodeValue:
    return NodeValue(output=output, status=update.status.value, error=update.error, label=update.label)
