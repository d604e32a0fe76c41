"""What the scripted model says in chats: chosen by the person's last message, not by how the chat began."""

from __future__ import annotations

from swe_ai_fleet.testing import Conversation, ScriptRequest, Turn


def said(words: str, *turns: Turn) -> tuple[Conversation, ...]:
    """The replies, one after the other, to a last message that holds these words."""
    return tuple(
        Conversation(predicate=lambda request, number=number: _at(request, words) == number, turns=(turn,))
        for number, turn in enumerate(turns)
    )


def called(name: str, **arguments: object) -> Turn:
    """A reply that calls one tool."""
    return Turn(tool_calls=((name, arguments),))


def answered(text: str) -> Turn:
    """A reply in words."""
    return Turn(content=text)


def last_message(request: ScriptRequest) -> str:
    """The person's last message, with what stands before it."""
    return next(m["content"] for m in reversed(request.payload["messages"]) if m["role"] == "user")


def _at(request: ScriptRequest, words: str) -> int:
    """How many replies the last message has had; -1 where it does not hold the words."""
    if words not in last_message(request):
        return -1
    replies = 0
    for message in reversed(request.payload["messages"]):
        if message["role"] == "user":
            break
        replies += message["role"] == "assistant"
    return replies
