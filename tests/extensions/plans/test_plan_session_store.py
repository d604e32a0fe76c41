"""Plan sessions where they are kept, over the key-value double that the contract suite holds true."""

from __future__ import annotations

import random

import pytest

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.message import UserMessage
from swe_ai_fleet.extensions.plans.session import PlanSession
from swe_ai_fleet.extensions.plans.store import KeyValueSessions
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue


def session(session_id: str = "s1", *, revision: int = 1, **fields: object) -> PlanSession:
    return PlanSession(session_id=session_id, goal="Round totals", revision=revision, **fields)  # type: ignore[arg-type]


class TestKeyValueSessions:
    @pytest.mark.parametrize("revision", [0, 1, 3])
    async def test_only_the_next_revision_is_put(self, revision: int) -> None:
        store = KeyValueSessions(MemoryKeyValue(), MemoryKeyValue(), tenant="t")
        await store.put(session())
        with pytest.raises(PreconditionFailed, match="changed by another process"):
            await store.put(session(revision=revision, answer="rival"))
        assert await store.get("s1") == session()

    async def test_what_is_longer_than_a_message_lies_in_pieces(self) -> None:
        heads, parts = MemoryKeyValue(), MemoryKeyValue()
        store = KeyValueSessions(heads, parts, tenant="t")
        noise = random.Random(1).randbytes(1_500_000).hex()
        await store.put(session(messages=(UserMessage(content=noise),)))
        pieces = await parts.entries()
        assert len(pieces) > 2
        assert max(len(piece.value) for piece in (*pieces, *await heads.entries())) < 1024 * 1024
        found = await store.get("s1")
        assert found is not None
        assert found.messages[0].content == noise
        # The next one leaves nothing of it behind.
        await store.put(session(revision=2))
        assert len(await parts.entries()) == 1
