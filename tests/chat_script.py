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


def final(text: str) -> Turn:
    """A reply that ends an agent's run."""
    return called("final_answer", result=text)


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


SQUARES = "result = sum(n * n for n in range(1, 11))"
HOSTILE_ANSWER = (
    "**Bold** <img src=x onerror=\"document.title='owned'\"> [bad](javascript:alert(1)) [good](https://example.org/a) "
    "![picture](https://example.org/x.png)\n\n<script>document.title='owned'</script>"
)
COLOUR = "Your favourite colour is green."
ASKED_COLOUR = "What is my favourite colour?"
FIRST_TASK, SECOND_TASK = "chat-first", "chat-second"


def _knows_green(request: ScriptRequest) -> bool:
    before, asked, _ = last_message(request).partition(ASKED_COLOUR)
    return bool(asked) and "green" in before


COLOUR_CONVERSATIONS = (
    Conversation(predicate=_knows_green, turns=(answered(COLOUR),)),
    *said(ASKED_COLOUR, answered("You have not told me.")),
    *said("favourite colour is green", answered("I will remember that.")),
)
"""Knows the colour where it was reminded of it, and nowhere else."""

CHAT_CONVERSATIONS = (
    *COLOUR_CONVERSATIONS,
    *said("the squares of 1 to 10", called("python_executor", code=SQUARES), answered("The sum is 385.")),
    *said("List what the fleet did", called("list_executions", limit=2), answered("Here is what it did.")),
    *said("Answer in markup", answered(HOSTILE_ANSWER)),
    *said(
        "Have somebody greet",
        called("start_task", description="Add hello_world()", repository="/srv/greeting"),
        answered("Shall I?"),
    ),
    *said("Show me the second one", called("show_execution", execution=FIRST_TASK), answered("It is the older one.")),
)
