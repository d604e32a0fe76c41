"""A run's journal: everything the model was told stands in it, and nothing twice."""

from __future__ import annotations

from swe_ai_fleet.domain.event import Event, EventBody, MessageAdded, ModelReplied, ToolFinished
from swe_ai_fleet.domain.message import ToolMessage
from swe_ai_fleet.ports import Journal


class RunJournal:
    """A `Journal` to which observations can be posted as messages; one that its tool call's end tells is left out.

    Args:
        journal: Where events go.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._told: dict[str, tuple[str, Event]] = {}

    def post(self, body: EventBody) -> Event:
        """Queue an event behind the others."""
        if isinstance(body, MessageAdded) and isinstance(body.message, ToolMessage):
            text, event = self._told.pop(body.message.call_id, ("", None))
            if event is not None and text == body.message.content:
                return event
        if isinstance(body, ModelReplied):
            # By then the model has been told of every call before.
            self._told.clear()
        event = self._journal.post(body)
        if isinstance(body, ToolFinished) and body.entry.call_id:
            self._told[body.entry.call_id] = (body.result.observation(), event)
        return event

    async def append(self, body: EventBody) -> Event:
        """Write an event and everything posted before it. Raises as the journal does."""
        event = self.post(body)
        await self._journal.flush()
        return event

    async def flush(self) -> None:
        """Wait until everything posted is durable. Raises as the journal does."""
        await self._journal.flush()
