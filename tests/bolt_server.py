"""A server that speaks Neo4j's wire protocol (Bolt 5.4) and answers from a script; it knows no Cypher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from neo4j._codec.packstream import Structure
from neo4j._codec.packstream.v1 import PackableBuffer, Packer, UnpackableBuffer, Unpacker

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


def pack(value: object) -> bytes:
    """A value as PackStream, by the driver's own packer."""
    buffer = PackableBuffer()
    Packer(buffer).pack(value)
    return bytes(buffer.data)


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

    `commit` is sent in place of the answer to a COMMIT.
    """

    answers: list[tuple[Callable[[str], bool], Answer | Failure]] = field(default_factory=list)
    port: int = 0
    seen: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    records_sent: int = 0
    connections: int = 0

    commit: str = "summary"
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
        message = Unpacker(UnpackableBuffer(data)).unpack()
        name, fields = _MESSAGES[message.tag[0]], tuple(message.fields)
        await self._server.note(name, fields)
        if self._silent or name == "GOODBYE":
            return name
        if name == "RESET":
            self._failed = False
        if self._failed:
            self._say(_IGNORED)
            return name
        return self._reply(name, fields) or name

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
                return "DROP"
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
        data = pack(Structure(bytes((tag,)), *fields))
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
