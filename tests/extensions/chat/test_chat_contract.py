"""A turn of a chat in the contract, and what chats spend."""

from __future__ import annotations

import json
from pathlib import Path

from google.protobuf import json_format

from fleet.conversation.v1 import conversation_pb2 as conversation
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.extensions.chat.opening import open_chats
from swe_ai_fleet.extensions.chat.session import Turn
from swe_ai_fleet.runtime.spending import Spending
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Script, ScriptedModelServer
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.chat_script import answered, said
from tests.sampling import sample

GOLDEN = Path(__file__).with_name("golden_turn.json")
"""Written by a converter that named each field by hand (November 2026)."""


def test_a_turn_is_sent_as_before_and_comes_back() -> None:
    sent = to_message(conversation.Turn, sample(Turn))
    now = json_format.MessageToDict(sent, preserving_proto_field_name=True)
    before = json.loads(GOLDEN.read_text())
    assert {name: now.get(name) for name in before} == before
    elsewhere = {name: getattr(sample(Turn), name) for name in ("channel", "message_id", "messages", "references")}
    assert from_message(Turn, sent, **elsewhere) == sample(Turn)


async def test_chats_use_up_the_day_of_their_tenant(tmp_path: Path) -> None:
    spending = Spending(MemoryKeyValue())
    async with ScriptedModelServer(Script(conversations=said("What is new?", answered("Nothing.")))) as server:
        settings = Settings(home=tmp_path, model_url=server.url, model="scripted")
        async with open_chats(settings, store=MemoryKeyValue(), spending=spending) as chats:
            usage = (await chats.of("small").send("s", "What is new?")).usage
    assert usage.total_tokens > 0
    assert (await spending.today("small"), await spending.today("other")) == (usage.total_tokens, 0)
