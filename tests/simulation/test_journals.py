"""The journals on JetStream over a bad network: one writer at a time, nothing twice, nothing lost that was answered."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.journal import journal
from swe_ai_fleet.adapters.jetstream.nats_client import NatsCredentials
from swe_ai_fleet.adapters.jetstream.protocol import (
    EXPECTED_SEQUENCE,
    MESSAGE_ID,
    NatsMessage,
    OutgoingMessage,
    StoredMessage,
    Unanswered,
    event_subject,
    generation_and_ordinal,
)
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.errors import AlreadyExists, Fenced, Unavailable
from swe_ai_fleet.domain.event import CancelRequested, Event, Writer
from swe_ai_fleet.in_process import MemoryLog
from tests.simulation.virtual_loop import on_virtual_time

TIMEOUT = 5.0
EVENTS = 6
WRONG_SEQUENCE = {"code": 400, "err_code": 10071, "description": "wrong last sequence"}
DISABLED = {"code": 400, "err_code": 10174, "description": "atomic publish is disabled"}
INCOMPLETE = {"code": 400, "err_code": 10176, "description": "atomic publish batch is incomplete"}
KNOWN = {"code": 400, "err_code": 10201, "description": "atomic publish batch contains duplicate message id"}
NO_MESSAGE = {"code": 404, "err_code": 10037, "description": "no message found"}


@dataclass(eq=False)
class StreamServer:
    """One stream for every subject. A stale expected sequence is refused, be the message known or not.

    `fate` says of a batch of so many what becomes of it: the error, or how many are stored before the server is killed.
    """

    fate: Callable[[int], Mapping[str, object] | int] = lambda count: count
    stored: list[StoredMessage] = field(default_factory=list[StoredMessage])
    _last: dict[str, StoredMessage] = field(default_factory=dict[str, StoredMessage])
    _known: dict[str, int] = field(default_factory=dict[str, int])

    def handle(
        self, subject: str, payload: bytes, headers: dict[str, str], before: Sequence[OutgoingMessage] = ()
    ) -> dict[str, object]:
        if subject.startswith("$JS.API.STREAM.MSG.GET."):
            last = self._last.get(json.loads(payload)["last_by_subj"])
            return {"message": _told(last)} if last else {"error": NO_MESSAGE}
        messages = [*before, OutgoingMessage(payload, headers)]
        fate = self.fate(len(messages)) if before else 1
        if not isinstance(fate, int):
            return {"error": fate}
        known = [self._known[one.headers[MESSAGE_ID]] for one in messages if one.headers[MESSAGE_ID] in self._known]
        if before and known:
            return {"error": KNOWN}
        last = self._last.get(subject)
        if int(messages[0].headers[EXPECTED_SEQUENCE]) != (last.sequence if last else 0):
            return {"error": WRONG_SEQUENCE}
        if known:
            return {"stream": "S", "seq": known[0], "duplicate": True}
        for data, of in messages[:fate]:
            message = StoredMessage(sequence=len(self.stored) + 1, subject=subject, data=data, headers=of)
            self.stored.append(message)
            self._last[subject] = message
            self._known[of[MESSAGE_ID]] = message.sequence
        if fate < len(messages):
            raise Unanswered("the server was killed")
        return {"stream": "S", "seq": len(self.stored)}


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
        super().__init__([], NatsCredentials(), "lossy")
        self._server = server
        self._random = random
        self._losing = losing
        self._late: set[asyncio.Task[None]] = set()
        self._ready.set()
        self.batches = random.random() < 0.8

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        headers: dict[str, str] | None = None,
        before: Sequence[OutgoingMessage] = (),
        seconds: float = 5.0,
    ) -> NatsMessage:
        await asyncio.sleep(self._random.expovariate(100))
        fate, kept = self._random.random() / self._losing, dict(headers or {})
        before = [OutgoingMessage(one.payload, dict(one.headers)) for one in before]
        if fate < 1 / 3:
            raise Unanswered("the request was lost")
        if fate < 2 / 3:
            task = asyncio.create_task(self._deliver_late(subject, payload, kept, before))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise Unanswered("the request is still on its way")
        answer = self._server.handle(subject, payload, kept, before)
        await asyncio.sleep(self._random.expovariate(100))
        if fate < 1:
            raise Unanswered("the answer was lost")
        return NatsMessage(subject="", reply="", data=json.dumps(answer).encode())

    async def _deliver_late(
        self, subject: str, payload: bytes, headers: dict[str, str], before: Sequence[OutgoingMessage]
    ) -> None:
        await asyncio.sleep(self._random.uniform(0, 3))
        with suppress(Unanswered):
            self._server.handle(subject, payload, headers, before)


class Writers:
    """Writers of one subject, each of which believes that it is the last."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        refuses = self.random.random() < 0.2
        self.server = StreamServer(fate=lambda count: DISABLED if refuses else self._fate(count))
        self.answered: list[str] = []
        self.accepted = 0

    def connection(self) -> LossyConnection:
        return LossyConnection(self.server, self.random, losing=0.3)

    async def write(self, generation: int, name: str) -> None:
        """Open and append, until it is fenced or the server is away for too long."""
        who = Writer(tenant="default", execution_id="e", task_id="t", generation=generation)
        await asyncio.sleep(self.random.uniform(0, 1.5 * generation))
        fresh = generation == 0
        try:
            async with journal(self.connection(), MemoryLog(), who, fresh=fresh, timeout=TIMEOUT) as opened:
                for number in range(1 if fresh else EVENTS):
                    posted = [
                        opened.post(CancelRequested(reason=f"{name}.{number}.{part}"))
                        for part in range(self.random.randrange(4))
                    ]
                    event = await opened.append(CancelRequested(reason=f"{name}.{number}.last"))
                    self.answered += [one.id for one in (*posted, event)]
                    self.accepted += fresh
                    await asyncio.sleep(self.random.uniform(0, 1))
        except (Fenced, AlreadyExists, Unavailable):
            pass

    def _fate(self, count: int) -> Mapping[str, object] | int:
        chance = self.random.random()
        return INCOMPLETE if chance < 0.1 else self.random.randrange(count) if chance < 0.2 else count

    def stored(self, agent_id: str = "_") -> list[Event]:
        subject = event_subject("default", "e", agent_id)
        return [from_json(Event, one.data) for one in self.server.stored if one.subject == subject]


@pytest.mark.parametrize("seed", range(12))
def test_generations_follow_each_other_and_every_answer_is_kept(seed: int) -> None:
    world = Writers(seed)

    async def compete() -> None:
        async with asyncio.TaskGroup() as group:
            for generation in (0, 0, 1, 1, 2, 3, 3):
                name = f"{generation}-{world.random.random()}"
                group.create_task(world.write(generation, name))

    on_virtual_time(compete())
    places = [generation_and_ordinal(one.headers[MESSAGE_ID]) for one in world.server.stored]
    assert places == sorted(set(places))
    for before, after in zip([(0, 0), *places], places, strict=False):
        assert after == (before[0], before[1] + 1) or (after[0] > before[0] and after[1] == 1)
    events = world.stored()
    ids = [event.id for event in events]
    assert set(world.answered) <= set(ids) and len(world.answered) == len(set(world.answered))
    assert world.accepted <= 1
    # Of each generation one writer wrote, whoever else tried.
    writers = {(event.id.split("/")[2], event.body.reason.rsplit(".", 2)[0]) for event in events}
    assert len({generation for generation, _ in writers}) == len(writers)


@pytest.mark.parametrize("seed", range(6))
def test_a_writer_without_rivals_is_never_taken_for_one(seed: int) -> None:
    """Its own event whose answer was lost, and its own late copies, are no fence and no other acceptance."""
    world = Writers(seed)

    async def alone() -> None:
        for generation in range(3):
            who = Writer(tenant="default", execution_id="e", task_id="t", generation=generation)
            connection = world.connection()
            async with journal(connection, MemoryLog(), who, fresh=not generation, timeout=600.0) as opened:
                for number in range(EVENTS):
                    opened.post(CancelRequested(reason=f"{generation}.{number}"))
                    if world.random.random() < 0.5:
                        await opened.flush()

    on_virtual_time(alone())
    told = [event.body for event in world.stored()]
    assert told == [CancelRequested(reason=f"{g}.{n}") for g in range(3) for n in range(EVENTS)]
