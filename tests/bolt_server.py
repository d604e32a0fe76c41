"""A server that speaks Neo4j's wire protocol (Bolt 5.4) and answers from a script; it knows no Cypher."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

USER = "reader"
PASSWORD = "correct+horse/battery"
QUOTED = "correct%2Bhorse%2Fbattery"

_MAGIC = bytes.fromhex("6060b017")
_VERSION = (5, 4)
_MESSAGES = {
    0x01: "HELLO", 0x6A: "LOGON", 0x6B: "LOGOFF", 0x02: "GOODBYE", 0x0F: "RESET", 0x54: "TELEMETRY", 0x66: "ROUTE",
    0x11: "BEGIN", 0x12: "COMMIT", 0x13: "ROLLBACK", 0x10: "RUN", 0x3F: "PULL", 0x2F: "DISCARD",
}  # fmt: skip
_SUCCESS, _RECORD, _IGNORED, _FAILURE = 0x70, 0x71, 0x7E, 0x7F
_UNAUTHORIZED = "Neo.ClientError.Security.Unauthorized"
_SIZES = {1: ">B", 2: ">H", 4: ">I"}


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure of PackStream: a tag and its fields."""

    tag: int
    fields: tuple[object, ...] = ()


def node(number: int, labels: Sequence[str], **properties: object) -> Struct:
    return Struct(0x4E, (number, list(labels), properties, f"4:x:{number}"))


def relationship(number: int, start: int, kind: str, end: int, **properties: object) -> Struct:
    return Struct(0x52, (number, start, end, kind, properties, f"5:x:{number}", f"4:x:{start}", f"4:x:{end}"))


def path(nodes: Sequence[Struct], kinds: Sequence[str], steps: Sequence[int]) -> Struct:
    unbound = [Struct(0x72, (100 + at, kind, {}, f"5:x:{100 + at}")) for at, kind in enumerate(kinds)]
    return Struct(0x50, (list(nodes), unbound, list(steps)))


def date_time(seconds: int, nanoseconds: int, offset_seconds: int) -> Struct:
    return Struct(0x49, (seconds, nanoseconds, offset_seconds))


def pack(value: Any) -> bytes:
    """A value as PackStream."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int() if -0x10 <= value < 0x80:
            return struct.pack(">b", value)
        case int():
            return b"\xcb" + struct.pack(">q", value)
        case float():
            return b"\xc1" + struct.pack(">d", value)
        case bytes():
            return _head(len(value), None, 0xCC) + value
        case str():
            return _head(len(value.encode()), 0x80, 0xD0) + value.encode()
        case dict():
            return _head(len(value), 0xA0, 0xD8) + b"".join(pack(part) for item in value.items() for part in item)
        case list() | tuple():
            return _head(len(value), 0x90, 0xD4) + b"".join(map(pack, value))
        case Struct():
            return bytes((0xB0 | len(value.fields), value.tag)) + b"".join(map(pack, value.fields))
        case _:
            raise TypeError(f"no PackStream for {type(value)}")


def _head(size: int, tiny: int | None, first: int) -> bytes:
    if tiny is not None and size < 16:
        return bytes((tiny | size,))
    width = 1 if size < 2**8 else 2 if size < 2**16 else 4
    return bytes((first + width // 2,)) + struct.pack(_SIZES[width], size)


class Unpacker:
    """Reads one value after the other from the PackStream of a message."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        assert len(taken) == size, "the message ends within a value"
        self._at += size
        return taken

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def value(self) -> Any:
        marker = self._number(">B")
        if marker < 0x80 or marker >= 0xF0:
            return marker if marker < 0x80 else marker - 0x100
        constants = {0xC0: None, 0xC2: False, 0xC3: True}
        numbers = {0xC1: ">d", 0xC8: ">b", 0xC9: ">h", 0xCA: ">i", 0xCB: ">q"}
        if marker in constants:
            return constants[marker]
        if marker in numbers:
            return self._number(numbers[marker])
        if 0xCC <= marker <= 0xCE:
            return self._take(self._number(_SIZES[2 ** (marker - 0xCC)]))
        for tiny, first in ((0x80, 0xD0), (0x90, 0xD4), (0xA0, 0xD8), (0xB0, 0xF0)):
            if marker & 0xF0 == tiny:
                return self._compound(tiny, marker & 0x0F)
            if first <= marker <= first + 2:
                return self._compound(tiny, self._number(_SIZES[2 ** (marker - first)]))
        raise ValueError(f"unknown marker {marker:02x}")

    def _compound(self, kind: int, size: int) -> Any:
        if kind == 0x80:
            return self._take(size).decode()
        if kind == 0x90:
            return [self.value() for _ in range(size)]
        if kind == 0xA0:
            return {self.value(): self.value() for _ in range(size)}
        return Struct(self._number(">B"), tuple(self.value() for _ in range(size)))


@dataclass(frozen=True, slots=True)
class Failure:
    """What the server says no with."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a statement gives.

    `records` may be endless: then a DISCARD never ends. After the last record comes `summary`, or `then`:
    "hang" (nothing more is said), "drop" (the connection ends), bytes (sent in its place, as they are), a failure.
    """

    fields: tuple[str, ...] = ()
    records: Callable[[], Iterable[Sequence[object]]] = tuple
    summary: dict[str, object] = field(default_factory=dict)
    then: str | bytes | Failure = "summary"
    endless: bool = False


@dataclass(slots=True)
class BoltServer:
    """Records each message in `seen`. `answers` are asked in turn; a statement nobody knows is a syntax error.

    `greeting` is sent in place of the handshake's answer; `commit` in place of that of a COMMIT.
    """

    answers: list[tuple[Callable[[str], bool], Answer | Failure]] = field(default_factory=list)
    port: int = 0
    seen: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    records_sent: int = 0
    connections: int = 0
    greeting: bytes = b""
    commit: str | Failure = "summary"
    _open: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def on(self, text: str, answer: Answer | Failure) -> None:
        """Answer statements that contain `text`."""
        self.answers.append((lambda statement: text in statement, answer))

    def url(self, scheme: str = "bolt", password: str = QUOTED) -> str:
        return f"{scheme}://{USER}:{password}@127.0.0.1:{self.port}/graph"

    def messages(self) -> list[str]:
        """The names of what was seen of transactions and statements."""
        return [name for name, _ in self.seen if name in ("BEGIN", "RUN", "PULL", "DISCARD", "COMMIT", "ROLLBACK")]

    def sent(self, name: str) -> list[tuple[Any, ...]]:
        return [fields for seen, fields in self.seen if seen == name]

    async def until_seen(self, name: str) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: bool(self.sent(name)))

    async def until_all_gone(self) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: self._open == 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await _Connection(self, reader, writer).run()
        finally:
            writer.close()
            self._open -= 1
            async with self._changed:
                self._changed.notify_all()

    async def note(self, name: str, fields: tuple[Any, ...]) -> None:
        async with self._changed:
            self.seen.append((name, fields))
            self._changed.notify_all()

    def answer(self, statement: str) -> Answer | Failure:
        for knows, answer in self.answers:
            if knows(statement):
                return answer
        return Failure("Neo.ClientError.Statement.SyntaxError", f"Invalid input {statement[:20]!r}: expected 'MATCH'")


class _Connection:
    def __init__(self, server: BoltServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        self._failed = False
        self._silent = False
        self._answer = Answer()
        self._records: Iterator[Sequence[object]] = iter(())
        self._next: Sequence[object] | None = None

    async def run(self) -> None:
        hello = await self._reader.readexactly(20)
        assert hello[:4] == _MAGIC
        if self._server.greeting:
            self._writer.write(self._server.greeting)
            await self._reader.read()
            return
        major, minor = _VERSION
        offers = [hello[at : at + 4] for at in range(4, 20, 4)]
        spoken = any(offer[3] == major and offer[2] - offer[1] <= minor <= offer[2] for offer in offers)
        self._writer.write(bytes((0, 0, minor, major) if spoken else 4))
        while (name := await self._message()) != "GOODBYE":
            await self._writer.drain()
            if name == "DROP":
                return

    async def _message(self) -> str:
        data = b""
        while size := int.from_bytes(await self._reader.readexactly(2)):
            data += await self._reader.readexactly(size)
        message = Unpacker(data).value()
        name = _MESSAGES[message.tag]
        await self._server.note(name, message.fields)
        if self._silent or name == "GOODBYE":
            return name
        if name == "RESET":
            self._failed = False
        if self._failed:
            self._say(_IGNORED)
            return name
        return self._reply(name, message.fields) or name

    def _reply(self, name: str, fields: tuple[Any, ...]) -> str | None:
        match name:
            case "HELLO":
                self._say(_SUCCESS, {"server": "Neo4j/5.13.0", "connection_id": "bolt-1", "hints": {}})
            case "LOGON" if (fields[0].get("principal"), fields[0].get("credentials")) != (USER, PASSWORD):
                return self._fail(Failure(_UNAUTHORIZED, f"no entry for {USER} on 127.0.0.1:{self._server.port}"))
            case "ROUTE":
                address = f"127.0.0.1:{self._server.port}"
                servers = [{"addresses": [address], "role": role} for role in ("ROUTE", "READ", "WRITE")]
                self._say(_SUCCESS, {"rt": {"ttl": 300, "db": "graph", "servers": servers}})
            case "RUN":
                answer = self._server.answer(fields[0])
                if isinstance(answer, Failure):
                    return self._fail(answer)
                self._answer, self._records = answer, iter(answer.records())
                self._next = next(self._records, None)
                self._say(_SUCCESS, {"fields": list(answer.fields), "qid": 0, "t_first": 1})
            case "PULL":
                return self._pull(fields[0]["n"])
            case "DISCARD":
                if self._answer.endless:
                    self._silent = True
                    return None
                return self._end()
            case "COMMIT" if self._server.commit != "summary":
                return self._fail(self._server.commit) if isinstance(self._server.commit, Failure) else "DROP"
            case _:
                self._say(_SUCCESS, {})
        return None

    def _pull(self, wanted: int) -> str | None:
        while self._next is not None and wanted:
            self._say(_RECORD, list(self._next))
            self._server.records_sent += 1
            self._next = next(self._records, None)
            wanted -= 1
        if self._next is None:
            return self._end()
        self._say(_SUCCESS, {"has_more": True})
        return None

    def _end(self) -> str | None:
        match self._answer.then:
            case Failure() as failure:
                return self._fail(failure)
            case bytes() as garbage:
                self._writer.write(garbage)
            case "hang":
                self._silent = True
            case "drop":
                return "DROP"
            case _:
                self._say(_SUCCESS, {"type": "rw", "t_last": 1, "db": "graph", **self._answer.summary})
        return None

    def _fail(self, failure: Failure) -> None:
        self._failed = True
        self._say(_FAILURE, {"code": failure.code, "message": failure.message})

    def _say(self, tag: int, *fields: object) -> None:
        data = pack(Struct(tag, fields))
        for at in range(0, len(data), 0xFFFF):
            chunk = data[at : at + 0xFFFF]
            self._writer.write(len(chunk).to_bytes(2) + chunk)
        self._writer.write(b"\0\0")


@asynccontextmanager
async def bolt_server() -> AsyncGenerator[BoltServer]:
    """A double on a free port of loopback; at the end every connection must be gone."""
    running = BoltServer()
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    async with server:
        yield running
        await running.until_all_gone()
