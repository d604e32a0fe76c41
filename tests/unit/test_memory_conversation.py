"""Short-term memory: whole turns, within limits, the same after a round trip."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.message import AssistantMessage, UserMessage
from swe_ai_fleet.memory.conversation import ConversationMemory, Turn, dumped, loaded

TURNS = st.lists(
    st.builds(Turn, user=st.text(max_size=2_000), assistant=st.text(max_size=2_000)), min_size=1, max_size=12
)


def test_the_newest_messages_are_told_in_whole_turns() -> None:
    conversation = ConversationMemory(10)
    for number in range(8):
        conversation.add(Turn(user=f"question {number}", assistant=f"answer {number}"))
    assert len(conversation) == 10
    assert conversation.get_context_string(limit=4) == (
        "User: question 6\nAssistant: answer 6\nUser: question 7\nAssistant: answer 7"
    )
    assert conversation.get_context_string() == conversation.get_context_string(limit=4)
    assert conversation.get_context_string(limit=1).startswith("User: question 7")
    assert conversation.get_context_string(limit=0) == ""
    assert conversation.get_context_string(limit=100).count("User:") == 5
    assert conversation.messages[-2:] == (UserMessage(content="question 7"), AssistantMessage(content="answer 7"))


def test_a_long_message_keeps_head_and_tail() -> None:
    conversation = ConversationMemory(4, max_chars=4_000)
    conversation.add(Turn(user="head " + "x" * 100_000 + " tail", assistant="short"))
    (turn,) = conversation.turns
    assert len(turn.user) <= 1_000 and turn.assistant == "short"
    assert turn.user.startswith("head") and turn.user.endswith("tail")


@given(TURNS, st.integers(1, 8))
def test_limits_hold_and_the_newest_stay(turns: list[Turn], most: int) -> None:
    conversation = ConversationMemory(2 * most, max_chars=4_000)
    for turn in turns:
        conversation.add(turn)
    kept = conversation.turns
    assert 1 <= len(kept) <= most
    assert sum(len(turn.user) + len(turn.assistant) for turn in kept) <= 4_000
    assert kept[-1].user[:100] == turns[-1].user[:100]
    assert loaded(dumped(kept)) == kept
    # What was limited once fits as it is.
    assert conversation.fitting(kept) == kept
