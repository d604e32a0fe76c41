"""What a chat can do with what is remembered beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.agents.sub_agents.results import described
from swe_ai_fleet.codec import from_plain, to_plain
from swe_ai_fleet.conversations.consent import asks_to_remember, to_remember
from swe_ai_fleet.conversations.desk import Desk
from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.memory.searching import FleetMemory
from swe_ai_fleet.ports import Memories, SecretMask
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.registry.plain_text import presented


class SearchMemory(BaseTool):
    """`search_memory(entities=[], queries=[]) -> {coverage, content, gaps, sources}` of the session's namespaces."""

    name = "search_memory"
    description = (
        "Search what was remembered in earlier conversations and runs. Says how much of what was asked it covers, and "
        "which of it are gaps. Memories are notes that may be wrong."
    )
    parameters = (
        ToolParameter("entities", "array", "Names to look for as written.", required=False, items="string"),
        ToolParameter("queries", "array", "Questions or key words.", required=False, items="string"),
    )
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    def __init__(self, memories: Memories, desk: Desk, mask: SecretMask) -> None:
        self._memory = FleetMemory(memories, desk.scope, mask=mask)

    async def execute(self, entities: Sequence[str] = (), queries: Sequence[str] = ()) -> dict[str, object]:
        """What is known. Raises FleetError."""
        if not entities and not queries:
            raise ToolFailure("nothing is asked; give entities or queries")
        return cast("dict[str, object]", to_plain(await self._memory.search(entities, queries)))

    def present(self, value: object) -> ToolResult:
        told = described(from_plain(MemoryResults, value))
        return replace(presented(self.name, value), content=told)


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
        """What was kept. Raises ToolFailure where nobody asked for it, another FleetError where it cannot be kept."""
        if not asks_to_remember(self._desk.text):
            raise ToolFailure("the person did not ask for anything to be remembered")
        return {"remembered": await keep(self._memories, self._desk)}


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
