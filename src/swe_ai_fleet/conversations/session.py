"""A chat as far as it has come: a value, with which any process can go on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.references.phrases import MAX_NAME_CHARS, NamedThing, kept
from swe_ai_fleet.agents.references.resolving import Reference
from swe_ai_fleet.conversations.formatting.document import Table
from swe_ai_fleet.domain import memory
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.message import AssistantMessage, Message
from swe_ai_fleet.domain.task import DEFAULT_TENANT

MAX_TURNS = 60
"""Of a session; the oldest are forgotten."""
MAX_SHOWN_CHARS = 100_000
"""Of earlier turns, so much is shown to the model; beyond it the older half is left out at once."""
MAX_TEXT_CHARS = 16_000
MAX_ANSWER_CHARS = 40_000
MAX_MESSAGE_ID_CHARS = 128
MAX_CARD_CHARS = 200
"""Of the last message, in a list of sessions."""
MAX_REFERENCES = 10
"""Of a turn, each with as many things as below, are kept to be shown again."""
MAX_REFERENCE_THINGS = 6
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A task that may be started once the person says so, and in which turn it was proposed.

    `key` is what it was tried to be started under: whoever tries again uses it again, so it is started once. `by` is
    who has it started, where that is somebody else than whoever says yes.
    """

    description: str
    repository: str
    ref: str = ""
    agents: int = 0
    turn: int = 0
    key: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What was said once and answered once.

    `messages` are what the model was shown of it and said to it; empty once they are too old. `message_id` is the
    caller's: the same one again is answered the same. `tools` are the names of what was called, `references` what
    phrases of the text were found to mean. Times are ISO 8601.
    """

    number: int
    text: str
    answer: str
    at: str
    channel: str = ""
    message_id: str = ""
    stop_reason: str = ""
    success: bool = True
    tools: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    tables: tuple[Table, ...] = ()
    execution_id: str = ""
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A chat.

    Attributes:
        session_id: Its name.
        tenant: Whose it is.
        nonce: What no writer of untrusted text can know of it.
        namespaces: Where it remembers and is reminded, beyond itself; empty: nowhere.
        turns: What was said, the oldest first.
        things: What was named, the oldest first.
        groups: How many lists have come up.
        count: How many turns there were, forgotten ones included.
        proposal: What waits for the person's yes.
        busy_until: Until when (ISO 8601, UTC) somebody answers a message; empty: nobody does.
    """

    session_id: str
    started_at: str
    nonce: str
    tenant: str = DEFAULT_TENANT
    updated_at: str = ""
    namespaces: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()
    things: tuple[NamedThing, ...] = ()
    groups: int = 0
    count: int = 0
    proposal: Proposal | None = None
    busy_until: str = ""

    @property
    def shown(self) -> tuple[Message, ...]:
        """The earlier turns as the model is shown them."""
        return tuple(message for turn in self.turns for message in turn.messages)

    @property
    def card(self) -> Session:
        """What a list of sessions shows: all of it is left out but for the beginning of the last message."""
        last = [
            replace(turn, text=turn.text[:MAX_CARD_CHARS], answer="", messages=(), tables=(), tools=(), references=())
            for turn in self.turns[-1:]
        ]
        proposal = replace(self.proposal, description="") if self.proposal else None
        return replace(self, turns=tuple(last), things=(), proposal=proposal, busy_until="")

    @property
    def waiting(self) -> Proposal | None:
        """What the person's next message can say yes to."""
        return self.proposal if self.proposal and self.proposal.turn == self.count else None

    def trying(self) -> Session:
        """The session once the person has said yes: whoever goes on with it knows that the task may be started."""
        if self.proposal is None or self.proposal.key:
            return self
        key = f"chat-{self.session_id}-{self.nonce[:8]}-{self.proposal.turn}"
        return replace(self, proposal=replace(self.proposal, key=key))

    def answered(self, message_id: str) -> Turn | None:
        """The turn in which a message was answered already."""
        return next((turn for turn in reversed(self.turns) if message_id and turn.message_id == message_id), None)

    def with_turn(self, turn: Turn, things: tuple[NamedThing, ...], proposal: Proposal | None) -> Session:
        """The session after one turn more, what is too old left out."""
        everything = kept((*self.things, *things))
        return replace(
            self,
            turns=_within((*self.turns, turn)[-MAX_TURNS:]),
            things=everything,
            groups=max([self.groups, *(thing.group for thing in things)]),
            count=turn.number,
            proposal=proposal,
            updated_at=turn.at,
            busy_until="",
        )


def shown_again(references: Sequence[Reference]) -> tuple[Reference, ...]:
    """What a turn keeps of its references: enough to show them, whatever a message was made of."""
    return tuple(
        replace(
            reference,
            phrase=reference.phrase[:MAX_NAME_CHARS],
            things=tuple(replace(thing, label="") for thing in reference.things[:MAX_REFERENCE_THINGS]),
        )
        for reference in references[:MAX_REFERENCES]
    )


def _within(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The turns with as many of their messages as are shown; where there are too many, half of them go at once.

    So the prompt's beginning stays the same from turn to turn, which is what a server's prefix cache needs.
    """
    if sum(map(_size, turns[-1].messages)) > MAX_SHOWN_CHARS:
        last = turns[-1]
        turns = (*turns[:-1], replace(last, messages=(last.messages[0], last.messages[-1])))
    sizes = [sum(map(_size, turn.messages)) for turn in turns]
    total = sum(sizes)
    if total <= MAX_SHOWN_CHARS:
        return turns
    shortened = list(turns)
    for number, size in enumerate(sizes[:-1]):
        if total <= MAX_SHOWN_CHARS // 2:
            break
        shortened[number] = replace(shortened[number], messages=())
        total -= size
    return tuple(shortened)


def _size(message: Message) -> int:
    calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
    return len(message.content) + sum(len(call.arguments) + len(call.name) for call in calls)


def check_session_id(text: str) -> str:
    """The id itself, if it is one. Raises InvalidRequest."""
    if not _SESSION_ID.fullmatch(text):
        raise InvalidRequest(
            f"{text[:64]!r} is not an id of a session",
            field="session_id",
            hint="1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit",
        )
    return text


def check_text(text: str) -> str:
    """What a person wrote, if it can be answered. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("the message is empty", field="text")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(
            f"the message has {len(text)} characters",
            field="text",
            hint=f"at most {MAX_TEXT_CHARS}; put long material into a file",
        )
    return text.strip()


def check_message_id(text: str) -> str:
    """The caller's name for a message, if it can be one; it may be empty. Raises InvalidRequest."""
    if len(text) > MAX_MESSAGE_ID_CHARS:
        raise InvalidRequest(
            "the message_id is too long", field="message_id", hint=f"at most {MAX_MESSAGE_ID_CHARS} characters"
        )
    return text


def check_namespaces(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The namespaces of memory, each once; None for none given. Raises InvalidRequest."""
    if names is None:
        return None
    return tuple(dict.fromkeys(memory.check_namespaces(names, field="namespaces")))
