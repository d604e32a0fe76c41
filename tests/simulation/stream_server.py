"""A JetStream server as far as publishing goes, behind a network that loses, delays and repeats."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from random import Random

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import Unanswered
from swe_ai_fleet.adapters.jetstream.login import Credentials
from swe_ai_fleet.adapters.jetstream.messages import Message, StoredMessage
from swe_ai_fleet.adapters.jetstream.wire import EXPECTED_SEQUENCE, MESSAGE_ID

WRONG_SEQUENCE = {"code": 400, "err_code": 10071, "description": "wrong last sequence"}
NO_MESSAGE = {"code": 404, "err_code": 10037, "description": "no message found"}


@dataclass(eq=False)
class StreamServer:
    """One stream for every subject. A stale expected sequence is refused, be the message known or not."""

    stored: list[StoredMessage] = field(default_factory=list[StoredMessage])
    _last: dict[str, StoredMessage] = field(default_factory=dict[str, StoredMessage])
    _known: dict[str, int] = field(default_factory=dict[str, int])

    def handle(self, subject: str, payload: bytes, headers: dict[str, str]) -> dict[str, object]:
        if subject.startswith("$JS.API.STREAM.MSG.GET."):
            last = self._last.get(json.loads(payload)["last_by_subj"])
            return {"message": _told(last)} if last else {"error": NO_MESSAGE}
        last = self._last.get(subject)
        if int(headers[EXPECTED_SEQUENCE]) != (last.sequence if last else 0):
            return {"error": WRONG_SEQUENCE}
        known = self._known.get(headers[MESSAGE_ID])
        if known is not None:
            return {"stream": "S", "seq": known, "duplicate": True}
        message = StoredMessage(sequence=len(self.stored) + 1, subject=subject, data=payload, headers=headers)
        self.stored.append(message)
        self._last[subject] = message
        self._known[headers[MESSAGE_ID]] = message.sequence
        return {"stream": "S", "seq": message.sequence}


def _told(message: StoredMessage) -> dict[str, object]:
    lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())
    return {
        "subject": message.subject,
        "seq": message.sequence,
        "hdrs": base64.b64encode(f"NATS/1.0\r\n{lines}\r\n".encode()).decode(),
        "data": base64.b64encode(message.data).decode(),
    }


class LossyConnection(Connection):
    """A connection whose requests get lost on the way there, on the way back, or arrive when nobody waits any more."""

    def __init__(self, server: StreamServer, random: Random, *, losing: float) -> None:
        super().__init__([], Credentials(), "lossy")
        self._server = server
        self._random = random
        self._losing = losing
        self._late: set[asyncio.Task[None]] = set()
        self._ready.set()

    async def request(
        self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None, seconds: float = 5.0
    ) -> Message:
        await asyncio.sleep(self._random.expovariate(100))
        fate, kept = self._random.random() / self._losing, dict(headers or {})
        if fate < 1 / 3:
            raise Unanswered("the request was lost")
        if fate < 2 / 3:
            task = asyncio.create_task(self._deliver_late(subject, payload, kept))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise Unanswered("the request is still on its way")
        answer = self._server.handle(subject, payload, kept)
        await asyncio.sleep(self._random.expovariate(100))
        if fate < 1:
            raise Unanswered("the answer was lost")
        return Message(subject="", reply="", data=json.dumps(answer).encode())

    async def _deliver_late(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        await asyncio.sleep(self._random.uniform(0, 3))
        self._server.handle(subject, payload, headers)
