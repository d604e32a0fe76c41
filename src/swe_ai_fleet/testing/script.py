"""What a scripted model says: conversations made of turns, chosen from the request alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from swe_ai_fleet.domain.budget import Usage

# A misspelt key in a script file is an error, not a reply that never comes.
_STRICT_KEYS = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply.

    `tool_calls` are (name, arguments) pairs; arguments given as text go out as they are, well-formed or not.
    `finish_reason` is worked out where it is empty. `delay_seconds` comes on top of the server's latency. The turn
    stands `times` times in a row. `call_ids` replace the ids the server makes up; `usage` replaces its estimate.
    `top_logprobs` are likely first tokens of the reply with their log-probabilities, for requests that ask for them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    content: str = ""
    tool_calls: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()
    finish_reason: str = ""
    delay_seconds: float = 0.0
    times: int = 1
    call_ids: tuple[str, ...] = ()
    usage: Usage | None = None
    top_logprobs: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A fault in place of a reply; the turn behind it is given once it has been seen `times` times (0: never).

    `status` with `message`, `code` and `param` makes an OpenAI error; `body` is sent instead as it is, with that
    status; `drop` closes the connection without an answer. With `after_chunks` a streamed reply, the turn behind the
    failure, breaks off after as many: with `drop` without a word, else with an event that holds the error or `body`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    status: int = 503
    message: str = "scripted failure"
    code: str = ""
    param: str = ""
    retry_after_seconds: float | None = None
    body: str | bytes | None = None
    drop: bool = False
    after_chunks: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRequest:
    """What a script may go by: `opening` is the text before the first assistant message, `turn` how many of those
    the request has, `payload` the whole request body."""

    opening: str
    turn: int
    seed: int | None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The turns of one conversation and which requests belong to it.

    A request belongs where all that is given holds: `match` is in its opening, `regex` is found there, `predicate`
    says so, its seed is `seed`. `agent` numbers conversations that share a prompt: of those that fit, the one whose
    place among the numbers is the seed modulo their count is taken, so successive seeds get different turns. The last
    turn stands for all later ones too, behind failures that end the list; with `loop` the first one follows it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    turns: tuple[Turn | Failure, ...]
    match: str = ""
    regex: str = ""
    predicate: Callable[[ScriptRequest], bool] | None = None
    seed: int | None = None
    agent: int | None = None
    loop: bool = False

    def fits(self, request: ScriptRequest) -> bool:
        """Whether the request belongs here, `agent` aside."""
        return (
            self.match in request.opening
            and (self.seed is None or self.seed == request.seed)
            and (not self.regex or re.search(self.regex, request.opening) is not None)
            and (self.predicate is None or self.predicate(request))
        )

    def at(self, turn: int) -> tuple[tuple[Failure, ...], Turn]:
        """The reply to a request with `turn` assistant messages, and the failures that come before it."""
        replies = [entry for entry in self.turns if isinstance(entry, Turn)]
        length = sum(reply.times for reply in replies)
        position = turn % length if self.loop and length else turn
        failures: list[Failure] = []
        first = 0
        for entry in self.turns:
            if isinstance(entry, Failure):
                failures.append(entry)
                continue
            if position < first + entry.times:
                # Failures stand before the first of a turn's repetitions only.
                return (tuple(failures) if position == first else ()), entry
            first += entry.times
            failures.clear()
        return tuple(failures), replies[-1] if replies else Turn(content="Done.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Conversations in the order they are tried; `default` answers what fits none of them.

    It keeps no state: a resumed, repeated or parallel conversation gets the same replies.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    conversations: tuple[Conversation, ...] = ()
    default: Conversation = Conversation(turns=(Turn(content="Done."),))

    @classmethod
    def of(cls, *turns: Turn | Failure) -> Script:
        """A script that says the same turns to everyone."""
        return cls(default=Conversation(turns=turns))

    @classmethod
    def from_json(cls, path: Path) -> Script:
        """Read a script file; raises OSError, or ValueError naming what does not fit.

        The file is an object with the fields of `Script`, down to those of `Turn` and `Failure` (an entry of `turns`
        with a `status` is a failure): `{"conversations": [{"match": "Fix the parser", "agent": 0, "turns":
        [{"tool_calls": [["files_read", {"path": "a.py"}]]}, {"status": 503, "times": 2}, {"content": "Done."}]}]}`.
        """
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def choose(self, request: ScriptRequest) -> Conversation:
        """The conversation that a request belongs to."""
        fitting = [conversation for conversation in self.conversations if conversation.fits(request)]
        agents = _agent_numbers(fitting)
        agent = agents[(request.seed or 0) % len(agents)] if agents else None
        for conversation in fitting:
            if conversation.agent in (None, agent):
                return conversation
        return self.default


def _agent_numbers(conversations: Sequence[Conversation]) -> list[int]:
    return sorted({conversation.agent for conversation in conversations if conversation.agent is not None})
