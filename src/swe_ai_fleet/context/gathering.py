"""The project's context for a prompt: blocks of the graph and memories, the most relevant first."""

from __future__ import annotations

from swe_ai_fleet.context.book import ContextBook
from swe_ai_fleet.domain.context import ContextRequest, GatheredContext
from swe_ai_fleet.ports import Memories, SecretMask

DEFAULT_TOKENS = 4_000


class ContextGatherer:
    """A `ContextSource`.

    Args:
        book: What projects know of themselves.
        memories: What is remembered; None: nothing is recalled.
        mask: Hides secrets in what is shown.
        token_budget: What a context may have where its request names no budget.
    """

    def __init__(
        self, book: ContextBook, memories: Memories | None, *, mask: SecretMask, token_budget: int = DEFAULT_TOKENS
    ) -> None:
        self._book = book
        self._memories = memories
        self._mask = mask
        self._token_budget = token_budget

    async def gather(self, request: ContextRequest) -> GatheredContext:
        """What fits the budget, the most relevant first. Raises InvalidRequest, NotFound, Unavailable."""
        raise NotImplementedError
