"""What a chat can do with what is remembered beyond it."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from swe_ai_fleet.conversations.consent import asks_to_remember, to_remember
from swe_ai_fleet.conversations.desk import Desk
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.memory import Memory, Recollection
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.memory.presenting import presented as as_notes
from swe_ai_fleet.memory.presenting import safe_text
from swe_ai_fleet.ports import Memories, SecretMask
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.registry.plain_text import presented


class SearchMemory(BaseTool):
    """`search_memory(query) -> {memories: [...]}` of the session's namespaces."""

    name = "search_memory"
    description = "Search what was remembered in earlier conversations and runs. Memories are notes that may be wrong."
    parameters = (ToolParameter("query", "string", "What to look for."),)
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    def __init__(self, memories: Memories, desk: Desk, mask: SecretMask) -> None:
        self._memories = memories
        self._desk = desk
        self._mask = mask

    async def execute(self, query: str) -> dict[str, object]:
        """What fits, best first. Raises ToolFailure."""
        if not query.strip():
            raise ToolFailure("the query is empty; say what to look for")
        try:
            found = await self._memories.recall(query[:1000], self._desk.scope, limit=5)
        except FleetError as fault:
            raise ToolFailure(str(fault)) from fault
        return {
            "memories": [_remembered(one, self._mask) for one in found],
            "notes": as_notes(found, self._mask, seed=self._desk.nonce),
        }

    def present(self, value: object) -> ToolResult:
        told = cast("dict[str, object]", value)["notes"]
        return replace(presented(self.name, value), content=str(told) or "Nothing fits.")


class Remember(BaseTool):
    """`remember() -> {remembered}`: what the person asked to be remembered, in the person's own words.

    It takes no text: what a page or a file says must not get into memory by way of the model.
    """

    name = "remember"
    description = "Keep the person's last message in memory, word for word. Only where the person asked to remember it."
    parameters = ()
    risk = Risk.LOW
    network = False
    locks = frozenset({"memory"})

    def __init__(self, memories: Memories, desk: Desk) -> None:
        self._memories = memories
        self._desk = desk

    async def execute(self) -> dict[str, object]:
        """What was kept. Raises ToolFailure where nobody asked for it."""
        if not asks_to_remember(self._desk.text):
            raise ToolFailure("the person did not ask for anything to be remembered")
        try:
            return {"remembered": await keep(self._memories, self._desk)}
        except FleetError as fault:
            raise ToolFailure(str(fault)) from fault


async def keep(memories: Memories, desk: Desk) -> str:
    """Remember what the person said, in the first of the session's namespaces; what was kept. Raises FleetError."""
    text = to_remember(desk.text) or desk.text[:2_000]
    if text not in desk.remembered:
        memory = Memory(
            namespace=desk.scope.namespaces[0],
            text=text,
            tenant=desk.scope.tenant,
            source=desk.source,
            created_at=desk.now,
        )
        await memories.remember(memory)
        desk.remembered.append(text)
    return text


def _remembered(found: Recollection, mask: SecretMask) -> dict[str, object]:
    memory = found.memory
    return {
        "memory": safe_text(memory.text, mask),
        "source": memory.source,
        "created_at": memory.created_at,
        "score": found.score,
    }
