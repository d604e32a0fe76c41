"""The last turns of a conversation, and a file that stores them for later processes."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.message import AssistantMessage, UserMessage
from swe_ai_fleet.domain.text import visible
from swe_ai_fleet.tools.truncation import truncate

MAX_CHARS = 32_000
_MOST_MESSAGES = 1_000
_LOCK_SECONDS = 10.0
_LOCK_PAUSE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A user's message and its answer. `at` is UTC, ISO 8601."""

    user: str
    assistant: str
    at: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    turns: tuple[Turn, ...] = ()


class ConversationMemory:
    """Short-term memory: the newest turns, a question and its answer always together.

    Args:
        max_messages: How many messages are kept; a turn has two. 0 keeps none.
        max_chars: How many characters they may have together. One message has at most a quarter of that; a longer
            one is cut in its middle.

    Raises InvalidRequest for a limit that no turn fits.
    """

    def __init__(self, max_messages: int = 10, *, max_chars: int = MAX_CHARS) -> None:
        if max_messages == 1 or not 0 <= max_messages <= _MOST_MESSAGES:
            raise InvalidRequest(
                f"max_messages is {max_messages}",
                field="max_conversation_messages",
                hint=f"an even number from 2 to {_MOST_MESSAGES}, or 0 to keep none; a turn has two messages",
            )
        if max_chars < 1_000:
            raise InvalidRequest(f"max_chars is {max_chars}", field="max_chars", hint="at least 1000")
        self._most_turns = max_messages // 2
        self._max_chars = max_chars
        self._turns: tuple[Turn, ...] = ()

    def __len__(self) -> int:
        """How many messages are kept."""
        return 2 * len(self._turns)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns that are kept, oldest first."""
        return self._turns

    @property
    def messages(self) -> tuple[UserMessage | AssistantMessage, ...]:
        """The same as messages for a model."""
        return tuple(
            message
            for turn in self._turns
            for message in (UserMessage(content=turn.user), AssistantMessage(content=turn.assistant))
        )

    def add(self, turn: Turn) -> None:
        """Add a turn; the oldest go where it is too much."""
        self.replace((*self._turns, turn))

    def replace(self, turns: tuple[Turn, ...]) -> None:
        """Replace all turns by these, as far as they fit."""
        self._turns = self.fitting(turns)

    def fitting(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """The newest of these turns that fit the limits."""
        most = self._max_chars // 4
        newest: list[Turn] = []
        left = self._max_chars
        for turn in reversed(turns[max(0, len(turns) - self._most_turns) :] if self._most_turns else ()):
            fitted = Turn(
                user=_cut(turn.user, most), assistant=_cut(turn.assistant, most), at=turn.at, metadata=turn.metadata
            )
            left -= len(fitted.user) + len(fitted.assistant)
            if left < 0:
                break
            newest.append(fitted)
        return tuple(reversed(newest))

    def clear(self) -> None:
        """Forget all turns."""
        self._turns = ()

    def get_context_string(self, limit: int = 5) -> str:
        """The newest messages as text for a prompt, at most `limit` of them; whole turns, and at least one.

        Further lines of a message are indented, so that none passes for the beginning of another message.
        """
        turns = self._turns[-max(1, limit // 2) :] if limit > 0 else ()
        return "\n".join(f"User: {_indented(turn.user)}\nAssistant: {_indented(turn.assistant)}" for turn in turns)


def dumped(turns: tuple[Turn, ...]) -> bytes:
    """The turns as UTF-8 JSON."""
    return to_json(_Stored(turns=turns))


def loaded(data: bytes) -> tuple[Turn, ...]:
    """The turns that `dumped` wrote. Raises ValueError for anything else."""
    return from_json(_Stored, data).turns


def _indented(text: str) -> str:
    # Each message is made visible by itself: an escape sequence must not span two messages.
    return "\n  ".join(visible(text).splitlines())


def _cut(text: str, limit: int) -> str:
    # The note on the omitted part must fit as well.
    return text if len(text) <= limit else truncate(text, limit - 100)


class ConversationFile:
    """The turns of one agent's conversation. Several processes may add to it at once.

    Args:
        directory: Where conversations lie; it is made, for its owner alone, when something is written.
        name: The agent.
    """

    def __init__(self, directory: Path, name: str) -> None:
        readable = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
        # Names that read the same are told apart by their digest.
        self._path = directory / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    async def read(self) -> tuple[Turn, ...]:
        """The turns as they stand. Raises PreconditionFailed, Unavailable."""
        return await asyncio.to_thread(self._read)

    async def update(self, change: Callable[[tuple[Turn, ...]], tuple[Turn, ...]]) -> tuple[Turn, ...]:
        """Replace the turns by the result of a function on them, in a thread, under an exclusive lock.

        Raises as `read` does.
        """
        return await asyncio.to_thread(self._update, change)

    def _read(self) -> tuple[Turn, ...]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}", field="home") from error
        try:
            return loaded(data)
        except ValueError:
            raise PreconditionFailed(
                f"{self._path} is not a conversation", field="home", hint="remove the file; nothing else depends on it"
            ) from None

    def _update(self, change: Callable[[tuple[Turn, ...]], tuple[Turn, ...]]) -> tuple[Turn, ...]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                changed = change(self._read())
                if changed:
                    self._write(dumped(changed))
                else:
                    self._path.unlink(missing_ok=True)
                return changed
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}", field="home") from error

    def _write(self, data: bytes) -> None:
        # Written to another file and renamed: readers, and a process killed here, leave a complete old or new file.
        beside = self._path.with_suffix(".new")
        with suppress(FileNotFoundError):
            beside.unlink()
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)

    @contextmanager
    def _locked(self) -> Generator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path.with_suffix(".lock"), flags, 0o600)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Unavailable(f"another process holds {self._path}", field="home") from None
                time.sleep(_LOCK_PAUSE)
