"""The state of a chat: messages as tasks, the session from which any process can continue, and its stores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from swe_ai_fleet.agents.references.phrases import MAX_NAME_CHARS, NamedThing, newest
from swe_ai_fleet.agents.references.resolving import ResolvedPhrase
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.conversations.document import Table
from swe_ai_fleet.domain import memory
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.message import AssistantMessage, Message, UserMessage
from swe_ai_fleet.domain.task import (
    DEFAULT_TENANT,
    MAX_PRIORITY,
    Constraints,
    MemoryOptions,
    RepoRef,
    Task,
    TaskKind,
)
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.execution_tools import Proposal

MAX_TURNS = 60
"""The most turns of a session; older ones are dropped."""
MAX_SHOWN_CHARS = 100_000
"""The most characters of earlier turns in the prompt; beyond it the older half is dropped at once."""
MAX_TEXT_CHARS = 16_000
MAX_ANSWER_CHARS = 40_000
MAX_MESSAGE_ID_CHARS = 128
MAX_CARD_CHARS = 200
"""The most characters of the last message in a list of sessions."""
MAX_REFERENCES = 10
"""The most references of a turn that are stored, each with `MAX_REFERENCE_THINGS` things."""
MAX_REFERENCE_THINGS = 6
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message of a person.

    Attributes:
        session_id: The session; an unknown one begins with this message.
        number: The number of its turn; 0 before the message is accepted.
        channel: The format of the answer.
        message_id: The caller's id of the message; a repeated id gets the same answer. Empty: none.
        namespaces: The namespaces of memory that the session uses from now on (`fleet`, `agent:<id>`,
            `repository:<name>`); new memories go to the first. None: those it used before, at first none.
        seen_turn: The last turn whose answer the person had seen when they wrote: a yes starts the task that was
            proposed in it, and no later one. None: the last turn of the session.
        by: The caller's name; empty where callers cannot be told apart.
    """

    session_id: str
    text: str
    number: int = 0
    channel: str = ""
    message_id: str = ""
    namespaces: tuple[str, ...] | None = None
    seen_turn: int | None = None
    by: str = ""

    def checked(self) -> ChatMessage:
        """The message, normalised. Raises InvalidRequest naming the field."""
        check_session_id(self.session_id)
        check_message_id(self.message_id)
        text = check_text(well_formed(self.text))
        return replace(self, text=text, namespaces=check_namespaces(self.namespaces))

    def task(self, tenant: str, limits: Limits) -> Task:
        """The message as a task: the session's id is the task's, the message's number the attempt."""
        seen_turn = "" if self.seen_turn is None else str(self.seen_turn)
        metadata = {"channel": self.channel, "message_id": self.message_id, "seen_turn": seen_turn}
        return Task(
            task_id=self.session_id,
            kind=TaskKind.CHAT,
            description=self.text,
            repo=RepoRef(location=""),
            tenant=tenant,
            constraints=Constraints(limits=limits, metadata={name: text for name, text in metadata.items() if text}),
            num_agents=1,
            attempt=self.number,
            # A person waits for the answer.
            priority=MAX_PRIORITY,
            caller=self.by,
            memory=MemoryOptions(read=bool(self.namespaces), namespaces=self.namespaces or ()),
        )

    @classmethod
    def of(cls, task: Task) -> ChatMessage:
        """The message of a task."""
        metadata = task.constraints.metadata
        return cls(
            session_id=task.task_id,
            text=task.description,
            number=task.attempt,
            channel=metadata.get("channel", ""),
            message_id=metadata.get("message_id", ""),
            namespaces=task.memory.namespaces,
            seen_turn=int(metadata["seen_turn"]) if "seen_turn" in metadata else None,
            by=task.caller,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A message and its answer.

    `messages` are the turn's part of the model's conversation; empty once the turn is too old. `message_id` is the
    caller's: a repeated id gets the same answer. `tools` are the names of the called tools, `references` the resolved
    phrases of the text. Times are ISO 8601.
    """

    number: int
    text: str
    answer: str
    at: str = ""
    channel: str = ""
    message_id: str = ""
    stop_reason: str = ""
    success: bool = True
    tools: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    tables: tuple[Table, ...] = ()
    execution_id: str = ""
    references: tuple[ResolvedPhrase, ...] = ()

    @classmethod
    def without_model(cls, message: ChatMessage, answer: str, stop_reason: str, *, success: bool) -> ChatTurn:
        """The turn of a message whose answer is not the model's."""
        return cls(
            number=message.number,
            text=message.text,
            answer=answer,
            stop_reason=stop_reason,
            success=success,
            messages=(UserMessage(content=message.text), AssistantMessage(content=answer)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatState:
    """A chat.

    Attributes:
        session_id: The id of the session.
        tenant: The tenant of the session.
        nonce: A random text that no writer of untrusted text knows.
        namespaces: The namespaces of long-term memory; empty: none.
        turns: The turns, the oldest first.
        things: The things that were named, the oldest first.
        groups: The number of lists so far.
        count: The number of the last turn.
        proposal: The task that waits for the person's confirmation.
    """

    session_id: str
    started_at: str
    nonce: str
    tenant: str = DEFAULT_TENANT
    updated_at: str = ""
    namespaces: tuple[str, ...] = ()
    turns: tuple[ChatTurn, ...] = ()
    things: tuple[NamedThing, ...] = ()
    groups: int = 0
    count: int = 0
    proposal: Proposal | None = None

    @property
    def model_messages(self) -> tuple[Message, ...]:
        """The messages of earlier turns for the model."""
        return tuple(message for turn in self.turns for message in turn.messages)

    @property
    def card(self) -> ChatState:
        """The session for a list: of its content, only the beginning of the last message."""
        last = [
            replace(turn, text=turn.text[:MAX_CARD_CHARS], answer="", messages=(), tables=(), tools=(), references=())
            for turn in self.turns[-1:]
        ]
        proposal = replace(self.proposal, description="") if self.proposal else None
        return replace(self, turns=tuple(last), things=(), proposal=proposal)

    @property
    def waiting(self) -> Proposal | None:
        """The proposal that the person's next message can confirm."""
        return self.proposal if self.proposal and self.proposal.turn == self.count else None

    def turn_of(self, message_id: str) -> ChatTurn | None:
        """The turn that answered a message with this id; None if there is none, or no id."""
        return next((turn for turn in reversed(self.turns) if message_id and turn.message_id == message_id), None)

    def answered(self, message: ChatMessage) -> ChatTurn | None:
        """The turn of a message; None while it has no answer."""
        turns = (turn for turn in self.turns if (turn.number, turn.text) == (message.number, message.text))
        return next(turns, None)

    def with_turn(self, turn: ChatTurn, things: tuple[NamedThing, ...], proposal: Proposal | None) -> ChatState:
        """The session after one more turn, without turns and things that are too old."""
        return replace(
            self,
            turns=_within((*self.turns, turn)[-MAX_TURNS:]),
            things=newest((*self.things, *things)),
            groups=max([self.groups, *(thing.group for thing in things)]),
            count=turn.number,
            proposal=proposal,
            updated_at=turn.at,
        )


def shown_again(references: Sequence[ResolvedPhrase]) -> tuple[ResolvedPhrase, ...]:
    """The references of a turn, cut to the fields that are shown."""
    return tuple(
        replace(
            reference,
            phrase=reference.phrase[:MAX_NAME_CHARS],
            things=tuple(replace(thing, label="") for thing in reference.things[:MAX_REFERENCE_THINGS]),
        )
        for reference in references[:MAX_REFERENCES]
    )


def _within(turns: tuple[ChatTurn, ...]) -> tuple[ChatTurn, ...]:
    """The turns, with messages for the model of at most `MAX_SHOWN_CHARS`; beyond it half of them are dropped at once.

    So the beginning of the prompt stays the same over many turns, which the prefix cache of a server needs.
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
    """The id, if it is well-formed. Raises InvalidRequest."""
    if not _SESSION_ID.fullmatch(text):
        raise InvalidRequest(
            f"{text[:64]!r} is not an id of a session",
            field="session_id",
            hint="1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit",
        )
    return text


def check_text(text: str) -> str:
    """The text of a message, stripped. Raises InvalidRequest if it is empty or too long."""
    if not text.strip():
        raise InvalidRequest("the message is empty", field="text")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(
            f"the message has {len(text)} characters",
            field="text",
            hint=f"at most {MAX_TEXT_CHARS}; put long material into a file",
        )
    return text.strip()


def check_message_id(text: str) -> None:
    """Check a caller's id of a message, which may be empty. Raises InvalidRequest if it is too long."""
    if len(text) > MAX_MESSAGE_ID_CHARS:
        raise InvalidRequest(
            "the message_id is too long", field="message_id", hint=f"at most {MAX_MESSAGE_ID_CHARS} characters"
        )


def check_namespaces(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The namespaces of memory without duplicates; None if none were given. Raises InvalidRequest."""
    if names is None:
        return None
    return tuple(dict.fromkeys(memory.check_namespaces(names, field="namespaces")))


CHATS_BUCKET = "CHATS"
MAX_SESSION_BYTES = 512 * 1024
_CARD = "card"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSession:
    """A stored session and its revision."""

    session: ChatState
    revision: int


class ChatStore(Protocol):
    """Stores sessions by tenant and id; a write names the revision that was read."""

    async def get(self, tenant: str, session_id: str) -> KeptSession | None:
        """The last revision of a session; None for an unknown session. Raises Unavailable."""
        ...

    async def put(self, session: ChatState, *, revision: int) -> int:
        """Replace a revision (0: none is stored); returns the new one. Raises Fenced (it has changed), Unavailable."""
        ...

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete a session, if it exists. Raises Unavailable."""
        ...

    async def listed(self, tenant: str) -> tuple[ChatState, ...]:
        """The cards of a tenant's sessions, the most recently used first. Raises Unavailable."""
        ...


class KeyValueChats:
    """A `ChatStore` in a key-value store that replicas share.

    The card of a session has a key of its own, so that a list need not read whole sessions.
    """

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    async def get(self, tenant: str, session_id: str) -> KeptSession | None:
        """The last revision of a session; None for an unknown session. Raises Unavailable."""
        entry = await self._store.get(_key(tenant, session_id))
        if entry is None:
            return None
        return KeptSession(session=from_json(ChatState, entry.value), revision=entry.revision)

    async def put(self, session: ChatState, *, revision: int) -> int:
        """Replace a revision; returns the new one. Raises Fenced, Unavailable."""
        key = _key(session.tenant, session.session_id)
        stored = await self._store.put(key, encoded(session), revision=revision)
        await self._store.put(f"{_CARD}.{key}", to_json(session.card))
        return stored

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete a session, if it exists. Raises Unavailable."""
        await self._store.delete(_key(tenant, session_id))
        await self._store.delete(f"{_CARD}.{_key(tenant, session_id)}")

    async def listed(self, tenant: str) -> tuple[ChatState, ...]:
        """The cards of a tenant's sessions, the most recently used first. Raises Unavailable."""
        entries = await self._store.entries(f"{_CARD}.{_key(tenant, '')}")
        return newest_first(from_json(ChatState, entry.value) for entry in entries)


def encoded(session: ChatState) -> bytes:
    """The session as JSON; one that is too long loses its oldest turns, and in the end its named things."""
    data = to_json(session)
    while len(data) > MAX_SESSION_BYTES and len(session.turns) > 1:
        session = replace(session, turns=session.turns[max(1, len(session.turns) // 4) :])
        data = to_json(session)
    if len(data) > MAX_SESSION_BYTES:
        session = replace(
            session,
            turns=tuple(replace(turn, messages=(), tables=(), references=()) for turn in session.turns),
            things=(),
        )
        data = to_json(session)
    return data


def newest_first(sessions: Iterable[ChatState]) -> tuple[ChatState, ...]:
    """Sessions by their last use, the newest first."""
    return tuple(sorted(sessions, key=lambda chat: (chat.updated_at or chat.started_at, chat.session_id), reverse=True))


def _key(tenant: str, session_id: str) -> str:
    return f"{tenant}.{session_id}"
