"""A host of agents that was taken over, on NATS: it does what is its tenant's work, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import nats
import nats.errors
import pytest
import structlog.testing
from nats.aio.client import Client

from swe_ai_fleet.adapters.jetstream import Issuer, JetStream, NatsCredentials, NatsLogin
from swe_ai_fleet.domain.assignment import AssignmentKind
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import FleetError, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT, RunClaimed, StoredEvent, Writer
from swe_ai_fleet.domain.job import Job, JobOutcome
from swe_ai_fleet.domain.message import TextDelta
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.host_logins import HostLogins, open_host_logins
from swe_ai_fleet.runtime.jobs import JOBS_BUCKET, JobBoard
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings, without_login
from tests.confinement import until
from tests.contract.test_event_log import take_batches
from tests.secured import secured_nats

SECRET = b"what tenant b wrote" * 20_000


@dataclass(frozen=True, kw_only=True)
class Stranger:
    client: Client
    faults: list[str]

    async def sends(self, subjects: Iterable[str], payload: bytes = b"{}", *, reply: str = "") -> None:
        for subject in subjects:
            await self.client.publish(subject, payload, reply=reply or self.client.new_inbox())
        await self.client.flush()

    async def asks(self, subject: str, body: object = None) -> bytes | None:
        """An answer, None where nobody gives one."""
        try:
            payload = b"" if body is None else json.dumps(body).encode()
            return (await self.client.request(subject, payload, timeout=0.7)).data
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            return None


@dataclass(frozen=True, kw_only=True)
class World:
    """A real server with accounts, an orchestrator's connection to it, and what tenant b has there."""

    settings: Settings
    log: JetStream
    logins: HostLogins
    board: JobBoard
    secret: BlobRef

    @property
    def url(self) -> str:
        return without_login(self.settings.nats_url)

    @asynccontextmanager
    async def host(self, login: str, *, waits: float = 10.0) -> AsyncIterator[JetStream]:
        """What a host does with its login."""
        credentials = NatsCredentials(host=login, ca=str(self.settings.nats_ca or ""))
        async with JetStream.connect(self.url, credentials=credentials, timeout=5, waits=waits) as log:
            yield log

    @asynccontextmanager
    async def stranger(self, login: str) -> AsyncIterator[Stranger]:
        """What somebody does who found a login: any client, any subject, any reply."""
        faults: list[str] = []

        async def told(error: Exception) -> None:
            faults.append(str(error))

        ca = self.settings.nats_ca
        tls = ssl.create_default_context(cafile=str(ca)) if ca else None
        client = await nats.connect(
            self.url, token=login, tls=tls, inbox_prefix=_inbox(login), error_cb=told, allow_reconnect=False
        )
        try:
            yield Stranger(client=client, faults=faults)
        finally:
            await client.close()

    async def said(self, tenant: str) -> dict[str, int]:
        """How many messages stand on each subject of a tenant, wherever they may come from."""
        found: dict[str, int] = {}
        # What was sent before is stored before this, which the server answers.
        await self.log.tell(Writer(tenant="c", execution_id="barrier", task_id="t", agent_id="~"), _claim())
        for stream in ("AGENT_EVENTS", "AGENT_RESULTS", "AGENT_JOBS", "AGENT_COMMANDS", "OBJ_agent-blobs"):
            info = await self.log.connection.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"}, timeout=5)
            subjects: dict[str, int] = info["state"].get("subjects") or {}
            found |= {name: count for name, count in subjects.items() if _is_of(tenant, name)}
        return found


def _is_of(tenant: str, subject: str) -> bool:
    described = base64.urlsafe_b64encode(f"{tenant}/e".encode()).decode()
    return any(part in (tenant, f"_{tenant}") or part.startswith(described) for part in subject.split(".")[2:])


def _inbox(login: str) -> str:
    return f"_INBOX.{login.partition('.')[0]}"


def _claim() -> RunClaimed:
    return RunClaimed(generation=1, host="h")


def _writer(tenant: str, agent: str = "agent-1") -> Writer:
    return Writer(tenant=tenant, execution_id=f"e-{tenant}", task_id=f"t-{tenant}", agent_id=agent)


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """With the accounts that `fleet init` writes."""
    home = tmp_path_factory.mktemp("home")
    async with AsyncExitStack() as stack:
        secured = await stack.enter_async_context(secured_nats(home / "fleet", ("a", "b")))
        keys = {"nats_nkey_file": "orchestrator", "nats_issuer_file": "issuer"}
        own = {name: secured.layout.nkey(user) for name, user in keys.items()}
        own |= {"nats_url": secured.url, "nats_ca": secured.layout.authority}
        settings = Settings.model_validate({"home": home, "executor": "kubernetes", **own})
        log = await stack.enter_async_context(connect_log(settings, name="orchestrator"))
        await log.ensure_streams()
        board = JobBoard(await log.bucket(JOBS_BUCKET), log)
        logins = await stack.enter_async_context(open_host_logins(settings, log))
        assert logins is not None
        for tenant, agent in product(("a", "b"), (EXECUTION_SUBJECT, "agent-1")):
            async with log.journal(_writer(tenant, agent)) as journal:
                await journal.append(_claim())
        secret = await log.put("b", "e-b", SECRET, "text/plain")
        yield World(settings=settings, log=log, logins=logins, board=board, secret=secret)


async def _events(log: JetStream, tenant: str, agent: str = "agent-1") -> list[StoredEvent]:
    return [one async for one in log.read(tenant, f"e-{tenant}", agent_id=agent)]


async def test_a_host_does_the_work_of_its_tenant(world: World) -> None:
    """The control of everything below."""
    with structlog.testing.capture_logs() as told:
        async with world.host(await world.logins.grant("a")) as host:
            await take_batches(world.log)
            async with host.journal(_writer("a", "agent-2")) as journal:
                journal.post(_claim())
                await journal.append(_claim())
            assert [one.event.body for one in await _events(host, "a", "agent-2")] == [_claim(), _claim()]
            assert await _events(host, "a", CONTROL_SUBJECT) == []
            for place in ("", "checkpoints/a"):
                blob = await host.put("a", "e-a", SECRET + place.encode(), "text/plain", place=place)
                assert await host.get(blob) == await world.log.get(blob) == SECRET + place.encode()
            shorter = await host.put("a", "e-a", b"less", "text/plain", place="checkpoints/a")
            assert await host.get(shorter) == b"less"
            await host.discard(shorter)
            with pytest.raises(NotFound):
                await host.get(shorter)
            result = {"tenant": "a", "task_id": "t-a", "execution_id": "e-a", "agent_id": "agent-2"}
            assert await host.publish(**result, payload=b"{}")
            assert not await host.publish(**result, payload=b"{}")
            with pytest.raises(PreconditionFailed, match="only publish results of agents"):
                await host.publish(**{**result, "agent_id": ""}, payload=b"{}")
            async with host.live_texts() as live, aclosing(world.log.watch_live("a", "e-a")) as heard:
                first = asyncio.create_task(anext(heard))
                while not live.is_followed("a", "e-a"):
                    await asyncio.sleep(0.05)
                live.say("a", "e-a", TextDelta(agent_id="agent-2", text="Well.", begins=True))
                assert (await first).text == "Well."
    assert not [line for line in told if line["event"] == "nats.forbidden"]
    assert (await world.said("a"))["agent.results._a.t-a.agent-2"] == 1


async def test_a_host_cannot_write_as_an_agent_of_another_tenant(world: World) -> None:
    before, own = await world.said("b"), await world.said("a")
    async with world.stranger(await world.logins.grant("a")) as stranger:
        await stranger.sends(
            (
                *("agent.events.b.e-b.agent-1", "agent.results._b.t-b.agent-1", "agent.results._b.t-b"),
                *("agent.jobs.b.high", "agent.cmd.execute.b", "$O.agent-blobs.C.b.x", "$O.agent-blobs.M.eA=="),
                *("agent.events.a.e-a._", "agent.events.a.e-a.~", "agent.results._a.t-a"),
            )
        )
        # The client tells of faults in tasks of their own.
        await until(lambda: len(stranger.faults) >= 10)
        # NATS asks nobody whether an answer may be sent where a request wants it: into another's log, or a queue.
        await stranger.sends(("agent.events.a.e-a.agent-9",), b"forged", reply="agent.events.b.e-b.agent-1")
        for reply in ("agent.events.b.e-b.agent-1", "agent.events.a.e-a._", "agent.jobs.b.high", "agent.cmd.execute.b"):
            await stranger.sends(("$JS.API.DIRECT.GET.AGENT_EVENTS.agent.events.a.e-a.agent-9",), b"", reply=reply)
    assert await world.said("b") == before
    assert await world.said("a") == own | {"agent.events.a.e-a.agent-9": 1}


async def test_a_host_cannot_read_what_another_tenant_did(world: World) -> None:
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(str(getattr(message, "subject", "")))

    consumer = {"name": "c", "deliver_policy": "all", "ack_policy": "none", "filter_subject": "agent.events.b.>"}
    pushed = consumer | {"deliver_subject": "_INBOX.somebody.else", "filter_subject": "agent.events.a.>"}
    made = {"stream_name": "AGENT_EVENTS", "action": "create"}
    login = await world.logins.grant("a")
    async with world.stranger(login) as stranger:
        for subject in ("agent.events.>", "agent.results.>", "agent.jobs.>", "$O.>", "$JS.>", "_INBOX.>", "_R_.>"):
            await stranger.client.subscribe(subject, cb=hear)
        api = "$JS.API."
        questions: tuple[tuple[str, object], ...] = (
            (f"{api}DIRECT.GET.AGENT_EVENTS.agent.events.b.e-b.agent-1", None),
            (f"{api}DIRECT.GET.AGENT_EVENTS", {"last_by_subj": "agent.events.b.e-b.agent-1"}),
            (f"{api}STREAM.MSG.GET.AGENT_EVENTS", {"last_by_subj": "agent.events.b.e-b.agent-1"}),
            (f"{api}STREAM.INFO.AGENT_EVENTS", {"subjects_filter": ">"}),
            (f"{api}STREAM.MSG.GET.OBJ_agent-blobs", {"seq": 1}),
            (f"{api}STREAM.SNAPSHOT.AGENT_EVENTS", {"deliver_subject": f"{_inbox(login)}.s"}),
            (f"{api}CONSUMER.CREATE.AGENT_EVENTS.c.agent.events.b.>", made | {"config": consumer}),
            (f"{api}CONSUMER.CREATE.AGENT_EVENTS.c.agent.events.a.>", made | {"config": pushed}),
            (f"{api}CONSUMER.CREATE.AGENT_EVENTS", made | {"config": consumer}),
            (f"{api}CONSUMER.MSG.NEXT.AGENT_EVENTS.context-recorder", {"batch": 1}),
            (f"{api}CONSUMER.DELETE.AGENT_EVENTS.context-recorder", None),
            ("agent.ask.events.b.e-b", {"agent_id": "agent-1", "start": 0}),
            ("agent.ask.content.b.e-b", {"name": world.secret.name, "start": 0}),
        )
        answers = await asyncio.gather(*(stranger.asks(subject, body) for subject, body in questions))
        for (subject, _), answer in zip(questions, answers, strict=True):
            # An account without JetStream of its own answers for itself, and knows nothing.
            assert answer is None or b"JetStream not enabled" in answer, subject
        for what in ("info", "content"):
            answer = await stranger.asks(f"agent.ask.{what}.a.e-a", {"name": world.secret.name, "start": 0})
            assert answer is not None and b"another tenant" in answer
        answer = await stranger.asks("agent.ask.events.a.e-a", {"agent_id": "../../b/e-b/agent-1", "start": 0})
        assert answer is not None and json.loads(answer) == {"messages": [], "more": False}
    assert heard == []
    consumers = await world.log.consumers("AGENT_EVENTS")
    assert "c" not in consumers
    async with world.host(login) as host:
        with pytest.raises(FleetError):
            await host.get(world.secret)
        assert [one.event.tenant for one in await _events(host, "a")] == ["a"]


async def test_a_host_cannot_touch_the_blobs_of_another_tenant(world: World) -> None:
    before = await world.said("b")
    chunks = next(name for name in before if name.startswith("$O.agent-blobs.C.")).removeprefix("$O.agent-blobs.C.")
    async with world.stranger(await world.logins.grant("a")) as stranger:
        for subject, name, chunk in (
            ("agent.ask.describe.b.e-b", world.secret.name, chunks),
            ("agent.ask.describe.a.e-a", world.secret.name, "a.x"),
            ("agent.ask.describe.a.e-a", "a/e-a/x", chunks),
            ("agent.ask.describe.a.e-a", "a/e-a/x", "a.>"),
            ("agent.ask.describe.a.e-a", "a/e-a/x", "a.x\r\nPUB agent.jobs.b.high 0"),
        ):
            meta = {"name": name, "nuid": chunk, "size": 1, "deleted": True, "mtime": "2026-01-01T00:00:00+00:00"}
            answer = await stranger.asks(subject, {"meta": meta})
            assert answer is None or b'"fault"' in answer
        await stranger.sends((f"$O.agent-blobs.C.{chunks}", "$JS.API.STREAM.PURGE.OBJ_agent-blobs"), b"")
        answer = await stranger.asks(
            "agent.ask.result.a.e-a", {"task_id": "t-b", "agent_id": "x", "payload": "", "headers": {}}
        )
        assert answer is not None and b"not belong to the execution" in answer
    assert await world.said("b") == before
    assert await world.log.get(world.secret) == SECRET


async def test_a_container_of_a_job_has_the_rights_of_its_run(world: World) -> None:
    run = {"kind": AssignmentKind.RUN, "tenant": "a", "task_id": "t-a", "execution_id": "e-a", "generation": 1}
    mine, other = [Job(**run, job_id=f"{number:032x}", agent_id=f"agent-{number}") for number in (11, 12)]
    for one in (mine, other):
        await world.board.post(one)
    login = await world.board.grant_login(mine)
    async with world.host(login) as host:

        async def write(agent: str, *, fresh: bool = False) -> None:
            async with host.journal(_writer("a", agent), fresh=fresh) as journal:
                await journal.append(_claim())

        board = JobBoard(host.made_bucket(JOBS_BUCKET), host)
        assert await board.job("a", mine.job_id) == mine
        await write(mine.agent_id)
        for forbidden in (
            board.job("a", other.job_id), board.settle(other, JobOutcome(value="1")),
            host.put("a", "another", b"x", "text/plain"), write(other.agent_id, fresh=True),
        ):  # fmt: skip
            with pytest.raises(PreconditionFailed, match="does not allow"):
                await forbidden
        assert await board.settle(mine, JobOutcome(value="1"))
    # Its outcome stands, and it may not say otherwise.
    with pytest.raises(PreconditionFailed, match="refused"):
        async with world.host(login, waits=0):
            pass


async def test_a_login_ends_with_its_host(world: World) -> None:
    login = await world.logins.grant("a")
    name, _, secret = login.partition(".")
    async with world.host(login):
        pass
    await world.logins.end(login)
    wrong = (f"{name}.wrong", f"{secret}.{name}", f"{name}.{secret}.a", ".", f"../{name}.{secret}", "a" * 2048)
    for shown in (login, *wrong):
        with pytest.raises(PreconditionFailed, match="refused"):
            async with world.host(shown, waits=0):
                pass


@pytest.mark.slow  # quick: the other cases
async def test_the_server_ends_a_connection_whose_time_is_up(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server, JetStream.connect(server.address.url) as log:
        let_in: list[str] = []

        async def who(shown: str) -> NatsLogin:
            let_in.append(shown)
            if len(let_in) > 2:
                raise PreconditionFailed("no longer")
            return NatsLogin(account="HOSTS_default", publishes=("x",), subscribes=("_INBOX.h.>",), seconds=2)

        heard = asyncio.Event()
        issuer = Issuer(server.issuer_file.read_text())
        answering = asyncio.create_task(log.answer_logins(lambda: issuer, who, listening=heard))
        await heard.wait()
        url, credentials = without_login(server.address.url), NatsCredentials(host="h.secret")
        async with JetStream.connect(url, credentials=credentials) as host:
            await until(lambda: len(let_in) >= 3)
            # It came back once; the next time nobody lets it in.
            await until(lambda: not host.connection.connected)
        assert let_in[:3] == ["h.secret"] * 3
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
