"""A server that speaks Neo4j's wire protocol (Bolt 5.4) and answers from a script; it knows no Cypher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from neo4j._codec.packstream import Structure
from neo4j._codec.packstream.v1 import PackableBuffer, Packer, UnpackableBuffer, Unpacker

USER = "reader"
PASSWORD = "correct+horse/battery"
QUOTED = "correct%2Bhorse%2Fbattery"

_VERSION = bytes((0, 0, 4, 5))
_MESSAGES = {
    0x01: "HELLO", 0x6A: "LOGON", 0x6B: "LOGOFF", 0x02: "GOODBYE", 0x0F: "RESET", 0x54: "TELEMETRY",
    0x11: "BEGIN", 0x12: "COMMIT", 0x13: "ROLLBACK", 0x10: "RUN", 0x3F: "PULL", 0x2F: "DISCARD",
}  # fmt: skip
_SUCCESS, _RECORD, _IGNORED, _FAILURE = 0x70, 0x71, 0x7E, 0x7F


@dataclass(frozen=True, slots=True)
class Failure:
    """What the server says no with."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a statement gives.

    `records` may be endless: then a DISCARD never ends. After the last record comes `summary`, or `then`:
    "hang" (nothing more is said), bytes (sent in its place, as they are), a failure.
    """

    fields: tuple[str, ...] = ()
    records: Callable[[], Iterable[Sequence[object]]] = tuple
    summary: dict[str, object] = field(default_factory=dict)
    then: str | bytes | Failure = "summary"
    endless: bool = False


@dataclass(slots=True)
class BoltServer:
    """Records each message in `seen`. `answers` are asked in turn; a statement nobody knows is a syntax error.

    With a `commit` of "drop" the connection ends in place of the answer to a COMMIT.
    """

    answers: list[tuple[str, Answer | Failure]] = field(default_factory=list)
    port: int = 0
    seen: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    records_sent: int = 0
    connections: int = 0
    commit: str = "summary"
    _open: int = 0
    _gone: asyncio.Condition = field(default_factory=asyncio.Condition)

    def on(self, text: str, answer: Answer | Failure) -> None:
        """Answer statements that contain `text`."""
        self.answers.append((text, answer))

    def url(self, password: str = QUOTED) -> str:
        return f"bolt://{USER}:{password}@127.0.0.1:{self.port}/graph"

    def messages(self) -> list[str]:
        """The names of what was seen of transactions and statements."""
        return [name for name, _ in self.seen if name in ("BEGIN", "RUN", "PULL", "DISCARD", "COMMIT", "ROLLBACK")]

    def sent(self, name: str) -> list[tuple[Any, ...]]:
        return [fields for seen, fields in self.seen if seen == name]

    async def until_all_gone(self) -> None:
        async with asyncio.timeout(10), self._gone:
            await self._gone.wait_for(lambda: self._open == 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await _Connection(self, reader, writer).run()
        finally:
            writer.close()
            self._open -= 1
            async with self._gone:
                self._gone.notify_all()

    def answer(self, statement: str) -> Answer | Failure:
        unknown = Failure("Neo.ClientError.Statement.SyntaxError", f"Invalid input {statement[:20]!r}")
        return next((answer for text, answer in self.answers if text in statement), unknown)


class _Connection:
    def __init__(self, server: BoltServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        self._failed = self._silent = False
        self._answer = Answer()
        self._records = iter(())
        self._next: Sequence[object] | None = None

    async def run(self) -> None:
        await self._reader.readexactly(20)
        self._writer.write(_VERSION)
        while True:
            data = b""
            while size := int.from_bytes(await self._reader.readexactly(2)):
                data += await self._reader.readexactly(size)
            message = Unpacker(UnpackableBuffer(data)).unpack()
            name, fields = _MESSAGES[message.tag[0]], tuple(message.fields)
            self._server.seen.append((name, fields))
            if name == "GOODBYE" or (name == "COMMIT" and self._server.commit == "drop"):
                return
            self._failed = self._failed and name != "RESET"
            if self._failed:
                self._say(_IGNORED)
            elif not self._silent:
                self._reply(name, fields)
            await self._writer.drain()

    def _reply(self, name: str, fields: tuple[Any, ...]) -> None:
        match name:
            case "HELLO":
                self._say(_SUCCESS, {"server": "Neo4j/5.13.0", "connection_id": "bolt-1", "hints": {}})
            case "LOGON" if (fields[0].get("principal"), fields[0].get("credentials")) != (USER, PASSWORD):
                message = f"no entry for {USER} on 127.0.0.1:{self._server.port}"
                self._fail(Failure("Neo.ClientError.Security.Unauthorized", message))
            case "RUN":
                answer = self._server.answer(fields[0])
                if isinstance(answer, Failure):
                    return self._fail(answer)
                self._answer, self._records = answer, iter(answer.records())
                self._next = next(self._records, None)
                self._say(_SUCCESS, {"fields": list(answer.fields), "qid": 0, "t_first": 1})
            case "PULL":
                self._pull(fields[0]["n"])
            case "DISCARD":
                self._silent = self._answer.endless
                if not self._silent:
                    self._end()
            case _:
                self._say(_SUCCESS, {})
        return None

    def _pull(self, wanted: int) -> None:
        while self._next is not None and wanted:
            self._say(_RECORD, list(self._next))
            self._server.records_sent += 1
            self._next = next(self._records, None)
            wanted -= 1
        if self._next is None:
            self._end()
        else:
            self._say(_SUCCESS, {"has_more": True})

    def _end(self) -> None:
        match self._answer.then:
            case Failure() as failure:
                self._fail(failure)
            case bytes() as garbage:
                self._writer.write(garbage)
            case "hang":
                self._silent = True
            case _:
                self._say(_SUCCESS, {"type": "rw", "t_last": 1, "db": "graph", **self._answer.summary})

    def _fail(self, failure: Failure) -> None:
        self._failed = True
        self._say(_FAILURE, {"code": failure.code, "message": failure.message})

    def _say(self, tag: int, *fields: object) -> None:
        buffer = PackableBuffer()
        Packer(buffer).pack(Structure(bytes((tag,)), *fields))
        self._writer.write(len(buffer.data).to_bytes(2) + buffer.data + b"\0\0")


@asynccontextmanager
async def bolt_server() -> AsyncGenerator[BoltServer]:
    """A double on a free port of loopback; at the end every connection must be gone."""
    running = BoltServer()
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    async with server:
        yield running
        await running.until_all_gone()
