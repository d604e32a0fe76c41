"""Who may say and hear what on NATS: a walk over every subject of the fleet, and the ways that must work."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shutil
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import nkeys
import pytest
import structlog.testing
from nats.aio.client import Client

from services.access.access_file import read_access
from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.adapters.jetstream.protocol import COMMANDS, EVENTS, STREAM_SUBJECTS
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT, RunClaimed, Writer
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.host_logins import HostLogins, open_host_logins
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.runtime.installation.layout import check
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from tests.confinement import until
from tests.secured import SecuredNats, secured_nats

# By the names that stand in servers; services may write to the first four, hosts to keys of the last three.
KEYS, MEMORIES, OUTCOMES, JOB_BOARD = "HTTP_KEYS", "agent-memories", "agent-outcomes", "agent-jobs"
TEST_RUNS, RECIPES = "agent-test-runs", "agent-environments"
BUCKETS = (
    *(KEYS, MEMORIES, OUTCOMES, JOB_BOARD, TEST_RUNS, RECIPES, "agent-planning", "agent-webhooks", "agent-hosts"),
    *("PLAN_SESSION_PARTS", "PLAN_SESSIONS", "CHATS", "councils", "orchestrators", "fleet-view", "drains"),
)
STREAMS = (*STREAM_SUBJECTS, "OBJ_agent-blobs", *(f"KV_{bucket}" for bucket in BUCKETS))
STREAM_VERBS = (
    *("CREATE", "UPDATE", "DELETE", "PURGE", "INFO", "SNAPSHOT", "RESTORE", "MSG.GET", "MSG.DELETE"),
    *("LEADER.STEPDOWN", "PEER.REMOVE"),
)
ASK = ("events", "result", "info", "content", "describe")
CONSUMER_VERBS = ("CREATE", "DURABLE.CREATE", "DELETE", "INFO", "MSG.NEXT", "PAUSE")
TENANTS = ("a", "b")


def public_key(seed: Path) -> str:
    return nkeys.from_seed(bytearray(seed.read_bytes().strip())).public_key.decode().rstrip("=")


def tenant_key(tenant: str) -> str:
    """What keys of a tenant begin with where its name may be anything."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]


def every_subject() -> set[str]:
    """What can be sent to in the fleet's account: every stream's subjects for each tenant, and the JetStream API."""
    found = {subject for patterns in STREAM_SUBJECTS.values() for subject in _filled(patterns)}
    found |= {f"agent.live.{kind}.{tenant}.e.w" for kind in ("want", "text") for tenant in TENANTS}
    found |= {f"$KV.{bucket}.key" for bucket in BUCKETS}
    found |= {"$O.agent-blobs.C.x", "$O.agent-blobs.M.x"}
    found |= {"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.ACCOUNT.PURGE.FLEET"}
    found |= {f"$JS.API.STREAM.{verb}.{stream}" for verb in STREAM_VERBS for stream in STREAMS}
    found |= {f"$JS.API.CONSUMER.{verb}.{stream}.x" for verb in CONSUMER_VERBS for stream in STREAMS}
    found |= {f"$JS.API.CONSUMER.CREATE.{stream}.x.agent.events.b.>" for stream in STREAMS}
    found |= {f"$JS.API.CONSUMER.{verb}.{stream}" for verb in ("NAMES", "LIST") for stream in STREAMS}
    found |= {f"$JS.API.DIRECT.GET.{stream}" for stream in STREAMS}
    for tenant in TENANTS:
        found |= {f"agent.ask.{what}.{tenant}.e" for what in ASK}
        found |= {f"$O.agent-blobs.C.{tenant}.x", f"$JS.API.DIRECT.GET.{EVENTS}.agent.events.{tenant}.e.w"}
        keys = {f"$KV.{JOB_BOARD}.{tenant}.j.{what}" for what in ("job", "login", "stop", "outcome", "pinned")}
        keys |= {f"$KV.{bucket}.{tenant_key(tenant)}.x" for bucket in (TEST_RUNS, RECIPES)}
        found |= keys | {f"$JS.API.DIRECT.GET.KV_{key.split('.')[1]}.{key}" for key in keys if ".outcome" not in key}
    found |= {f"$JS.ACK.{stream}.c.1.1.1.1.0" for stream in STREAMS}
    found |= {"$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.FLEET.CONNZ"}
    return found


def _filled(patterns: Iterable[str]) -> Iterable[str]:
    for pattern in patterns:
        if not pattern.endswith(".>"):
            yield pattern
            continue
        stem = pattern.removesuffix(".>")
        for tenant in (*TENANTS, *(f"_{tenant}" for tenant in TENANTS), "default"):
            yield from (f"{stem}.{tenant}", f"{stem}.{tenant}.x", f"{stem}.{tenant}.x.y")
            yield from (f"{stem}.{tenant}.x.{EXECUTION_SUBJECT}", f"{stem}.{tenant}.x.{CONTROL_SUBJECT}")


FILTERS = (
    *(">", "agent.>", "agent.events.b.>", "agent.events.*.*.*", "agent.results._b.>", "agent.cmd.>", "agent.plans.>"),
    *("agent.jobs.>", "agent.dlq.>", "agent.live.>", "context.>", "$KV.>", "$O.>", "$JS.>", "$JS.API.>", "$JS.ACK.>"),
    *("$SYS.>", "_INBOX.>", "_R_.>", "$JSC.>"),
)


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredNats]:
    async with secured_nats(tmp_path_factory.mktemp("secured"), TENANTS) as running:
        async with JetStream.connect(running.url, credentials=running.credentials("orchestrator")) as log:
            await log.ensure_streams()
            for bucket in BUCKETS:
                await log.bucket(bucket)
        yield running


_LAST = "nobody.may.say.this"


@dataclass
class Said:
    """A client of a user and the faults that the server told it of."""

    client: Client
    faults: list[str]

    async def refused(self, subjects: Iterable[str], verb: str) -> set[str]:
        """Which of some subjects the server refuses."""
        asked = sorted(subjects)
        self.faults.clear()
        for subject in asked:
            if verb == "publish":
                await self.client.publish(subject, b"{}", reply="_INBOX.nobody")
            else:
                await self.client.subscribe(subject)
        # The server tells of faults in order, and of this one last.
        await self.client.publish(_LAST, b"")
        await until(lambda: any(_LAST in fault for fault in self.faults))
        told = {fault.partition('"')[2].partition('"')[0] for fault in self.faults if f"for {verb}" in fault}
        return {subject for subject in asked if subject.lower() in told}


@asynccontextmanager
async def client_of(secured: SecuredNats, user: str, *, login: str = "") -> AsyncIterator[Said]:
    faults: list[str] = []

    async def told(error: Exception) -> None:
        faults.append(str(error))

    shown = {"token": login} if login else {"nkeys_seed": str(secured.layout.nkey(user))}
    own = login.partition(".")[0] or ("" if user.startswith("tenant-") else public_key(secured.layout.nkey(user)))
    tls = ssl.create_default_context(cafile=str(secured.layout.authority))
    inbox = f"_INBOX.{own}".rstrip(".")
    async with await nats.connect(
        secured.url, **shown, tls=tls, inbox_prefix=inbox, error_cb=told, allow_reconnect=False
    ) as client:
        yield Said(client, faults)


@pytest.mark.slow  # quick: a server without TLS
async def test_without_a_user_nobody_comes_in(secured: SecuredNats, tmp_path: Path) -> None:
    wrong, nothing = tmp_path / "wrong.nkey", tmp_path / "nothing"
    wrong.write_bytes(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER))
    nothing.write_text("nothing")
    ca = str(secured.layout.authority)

    async def refused(credentials: NatsCredentials, field: str) -> None:
        with pytest.raises(PreconditionFailed, match="" if field else "refused the credentials") as fault:
            async with JetStream.connect(secured.url, credentials=credentials):
                pass
        assert not field or fault.value.field == field

    cases = (
        (NatsCredentials(ca=ca), ""), (NatsCredentials(token="guess", ca=ca), ""),
        (NatsCredentials(nkey=str(wrong), ca=ca), ""),
        (NatsCredentials(user="orchestrator", password="guess", ca=ca), ""),
        (NatsCredentials(nkey=str(tmp_path / "none")), "nats_nkey_file"), (NatsCredentials(ca=str(nothing)), "nats_ca"),
        (NatsCredentials(nkey=str(nothing)), "nats_nkey_file"),
        (NatsCredentials(cert=str(nothing), key=str(nothing)), "nats_cert"),
    )  # fmt: skip
    await asyncio.gather(*(refused(*case) for case in cases))


@asynccontextmanager
async def listening(client: Client, subjects: Iterable[str]) -> AsyncIterator[list[str]]:
    """The subjects of what a client hears."""
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(str(getattr(message, "subject", "")))

    for subject in subjects:
        await client.subscribe(subject, cb=hear)
    await client.flush()
    yield heard


async def test_a_tenant_can_send_tasks_and_nothing_else(secured: SecuredNats) -> None:
    everything = ("agent.>", "context.>", "$KV.>", "$O.>")
    async with (
        client_of(secured, "tenant-a") as tenant,
        client_of(secured, "operator") as operator,
        listening(operator.client, everything) as heard,
    ):
        names = await operator.client.request("$JS.API.STREAM.NAMES", b"{}")
        assert set(json.loads(names.data)["streams"]) == set(STREAMS), "the walk leaves streams out"
        subjects = every_subject() - {"agent.cmd.execute"}
        assert await tenant.refused(subjects, "publish") == subjects
        answer = await tenant.client.request("agent.cmd.execute", b"{}")
        assert f'"stream":"{COMMANDS}"'.encode() in answer.data
        await operator.client.flush()
        await until(lambda: bool(heard))
    assert heard == ["agent.cmd.execute.a"]


async def test_a_tenant_hears_what_is_its_own_by_short_names(secured: SecuredNats) -> None:
    # In its own account `b` is no tenant but an execution of its own.
    mine = {"_INBOX.>", "agent.events.b.>", "agent.events.*.*.*", "agent.results._b.>"}
    inner = ("x", "x.y", f"x.{EXECUTION_SUBJECT}", f"x.{CONTROL_SUBJECT}")
    expected = {f"agent.{kind}.{name}" for kind in ("events", "results") for name in inner}
    async with (
        client_of(secured, "tenant-a") as tenant,
        client_of(secured, "operator") as operator,
        listening(tenant.client, (*sorted(mine), "agent.events.>", "agent.results.>")) as heard,
    ):
        assert await tenant.refused(FILTERS, "subscription") == set(FILTERS) - mine
        for subject in sorted(every_subject()):
            if not subject.startswith("$"):
                await operator.client.publish(subject, b"{}")
        await operator.client.flush()
        await until(lambda: expected <= set(heard))
        await tenant.client.flush()
    assert set(heard) == expected


@pytest.fixture(scope="module")
async def logins(secured: SecuredNats, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HostLogins]:
    nkeys = {"nats_nkey_file": secured.layout.nkey("orchestrator"), "nats_issuer_file": secured.layout.nkey("issuer")}
    place = {"home": tmp_path_factory.mktemp("home"), "nats_url": secured.url, "nats_ca": secured.layout.authority}
    settings = Settings.model_validate({**place, **nkeys})
    async with connect_log(settings, name="orchestrator") as log, open_host_logins(settings, log) as opened:
        assert opened is not None
        yield opened


async def test_a_host_says_what_agents_of_its_tenant_say_and_nothing_else(
    secured: SecuredNats, logins: HostLogins
) -> None:
    everything = every_subject()
    async with client_of(secured, "", login=await logins.grant("a")) as host:
        allowed = everything - await host.refused(everything, "publish")
        assert await host.refused(FILTERS, "subscription") == set(FILTERS)
    own, get = tenant_key("a"), "$JS.API.DIRECT.GET"
    readable = {f"{get}.KV_{bucket}.$KV.{bucket}.{own}.x" for bucket in (TEST_RUNS, RECIPES)}
    readable |= {f"{get}.KV_{JOB_BOARD}.$KV.{JOB_BOARD}.a.j.{what}" for what in ("job", "login", "stop", "pinned")}
    assert allowed == readable | {
        *("agent.events.a.x.y", "agent.live.text.a.e.w", "$O.agent-blobs.C.a.x", f"{get}.{EVENTS}.agent.events.a.e.w"),
        *(f"$KV.{JOB_BOARD}.a.j.outcome", f"$KV.{JOB_BOARD}.a.j.pinned", f"$KV.{TEST_RUNS}.{own}.x"),
        *(f"agent.ask.{what}.a.e" for what in ASK),
    }
    nobody = NatsCredentials(host=await logins.grant("nobody"), ca=str(secured.layout.authority))
    with pytest.raises(PreconditionFailed, match="refused the credentials"):
        async with JetStream.connect(secured.url, credentials=nobody):
            pass


@pytest.mark.parametrize(
    ("user", "sends"),
    [
        ("gateway", {f"$KV.{KEYS}.key"}),
        ("context", {"$KV.agent-memories.key", f"$KV.{OUTCOMES}.key"}),
        ("worker", {f"$KV.{JOB_BOARD}.key"}),
    ],
)
async def test_services_write_their_own_buckets_only(secured: SecuredNats, user: str, sends: set[str]) -> None:
    inbox = f"_INBOX.{public_key(secured.layout.nkey('orchestrator'))}.>"
    async with client_of(secured, user) as service:
        refused = await service.refused(every_subject(), "publish")
        assert await service.refused({*FILTERS, inbox}, "subscription") == {*FILTERS, inbox}
    assert {f"$KV.{bucket}.key" for bucket in BUCKETS} - refused == sends
    deleting = ("DELETE", "PURGE", "MSG.DELETE")
    assert {f"$JS.API.STREAM.{verb}.{stream}" for verb in deleting for stream in STREAMS} <= refused
    assert {one for one in every_subject() if one.startswith(("agent.events.", "agent.cmd.", "agent.plans"))} <= refused


async def test_a_server_without_tls_or_of_another_authority_is_told_nothing(
    secured: SecuredNats, tmp_path: Path, nats_server: EmbeddedNats
) -> None:
    await asyncio.to_thread(install, tmp_path / "other")
    token, plain = nats_server.address.token, nats_server.address.url
    stranger = NatsCredentials(nkey=str(secured.layout.nkey("context")), ca=str(tmp_path / "other" / "tls" / "ca.pem"))
    for url, credentials, kind, words in (
        (plain, NatsCredentials(token=token, ca=str(secured.layout.authority)), Unavailable, "has no TLS"),
        # Nor where the address alone asks for it: who stands in between must not talk us out of it.
        (plain.replace("nats://", "tls://"), NatsCredentials(token=token), Unavailable, "has no TLS"),
        (secured.url, stranger, PreconditionFailed, "not trusted"),
    ):
        with pytest.raises(kind, match=words) as fault:
            async with JetStream.connect(url, credentials=credentials):
                pass
    assert fault.value.field == "nats_ca"


async def test_an_orchestrator_deletes_messages_and_no_stream(secured: SecuredNats) -> None:
    async with client_of(secured, "orchestrator") as orchestrator:
        refused = await orchestrator.refused(every_subject(), "publish")
    verbs = {verb: {f"$JS.API.STREAM.{verb}.{stream}" for stream in STREAMS} for verb in STREAM_VERBS}
    assert not verbs["MSG.DELETE"] & refused
    for verb in ("DELETE", "PURGE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN", "PEER.REMOVE"):
        assert verbs[verb] <= refused, verb


# --- new credentials on a NATS that works: what came in before comes in until the overlap is over, and nothing is lost


MADE_ANEW = ("orchestrator", "context", "gateway", "worker", "operator", "sys")


async def _write(journal: Journal, written: list[int]) -> None:
    """The next claim behind the last one, all the time."""
    while True:
        await journal.append(RunClaimed(generation=len(written) + 1, host="h"))
        written.append(len(written) + 1)


@asynccontextmanager
async def working(nats: SecuredNats, home: Path) -> AsyncIterator[tuple[dict[str, list[int]], JetStream]]:
    """A host of agents and an orchestrator that write all the time, until the context ends; what they wrote."""
    settings = Settings(
        home=home, nats_url=nats.url, nats_ca=nats.layout.authority,
        nats_nkey_file=nats.layout.nkey("orchestrator"), nats_issuer_file=nats.layout.nkey("issuer"),
    )  # fmt: skip
    written: dict[str, list[int]] = {"orchestrator": [], "host": []}
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(connect_log(settings, name="orchestrator"))
        await log.ensure_streams()
        logins = await stack.enter_async_context(open_host_logins(settings, log))
        assert logins is not None
        shown = NatsCredentials(host=await logins.grant("a"), ca=str(nats.layout.authority))
        host = await stack.enter_async_context(JetStream.connect(nats.url, credentials=shown, waits=20))
        for name, client in (("orchestrator", log), ("host", host)):
            writer = Writer(tenant="a", execution_id="e", task_id="t", agent_id=name)
            journal = await stack.enter_async_context(client.journal(writer, fresh=True))
            writing = asyncio.create_task(_write(journal, written[name]))
            stack.callback(writing.cancel)
        yield written, log


async def _goes_on(written: dict[str, list[int]]) -> None:
    """Wait until every one has written more."""
    before = {name: len(numbers) for name, numbers in written.items()}
    await until(lambda: all(len(numbers) > before[name] + 3 for name, numbers in written.items()))


async def _comes_in(nats: SecuredNats, seed: Path) -> bool:
    try:
        login = NatsCredentials(nkey=str(seed), ca=str(nats.layout.authority))
        async with JetStream.connect(nats.url, credentials=login) as log:
            return (await log.ping()).ok
    except PreconditionFailed as fault:
        assert "refused the credentials" in str(fault)
        return False


@pytest.mark.slow  # quick: unit/test_installation.py
async def test_keys_are_made_anew_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    async with secured_nats(tmp_path / "fleet", ("a",)) as nats:
        directory = nats.layout.directory
        (old := tmp_path / "old").mkdir()
        for user in MADE_ANEW:
            shutil.copy(nats.layout.nkey(user), old / user)
        async with working(nats, tmp_path / "home") as (written, log):
            await _goes_on(written)
            with structlog.testing.capture_logs() as lines:
                await asyncio.to_thread(install, directory, rotate=("nats", "services"), overlap=3_600)
                await nats.reloaded()
                await _goes_on(written)
            # The host's alone: a server that reloads has every host log in again.
            assert [line["event"] for line in lines].count("nats.connection_lost") == 1
            seeds = {user: (old / user, nats.layout.nkey(user)) for user in MADE_ANEW if user != "sys"}
            assert [user for user, pair in seeds.items() for one in pair if not await _comes_in(nats, one)] == []
            services = {entry.name: entry for entry in read_access(nats.layout.access).tokens}
            assert all(len(services[f"service:{name}"].digests) == 2 for name in ("orchestrator", "gateway"))
            assert check(directory) == ()
            with pytest.raises(InvalidRequest, match="an earlier rotation overlaps until"):
                await asyncio.to_thread(install, directory, rotate=("nats",), overlap=60)

            # The time is over: who came in by a former key is cut off, and comes in by the new one.
            former = json.loads(nats.layout.former.read_text())
            nats.layout.former.write_text(json.dumps({**former, "until": 1}))
            (finding,) = check(directory)
            assert (finding.file, finding.fault) == (nats.layout.former, "lets nkeys in whose overlap is over")
            await asyncio.to_thread(install, directory)
            await nats.reloaded()
            await _goes_on(written)
            assert [await _comes_in(nats, one) for one in seeds["orchestrator"]] == [False, True]
            assert check(directory) == () and not nats.layout.former.exists()

            # Who lets hosts in takes a restart of NATS alone.
            await asyncio.to_thread(install, directory, rotate=("issuer",))
            await nats.restart()
            await _goes_on(written)
            counts = {name: len(numbers) for name, numbers in written.items()}
            for agent, count in counts.items():
                stored = [told.event.body async for told in log.read("a", "e", agent_id=agent)]
                assert len(stored) >= count > 12
                assert stored == [RunClaimed(generation=number, host="h") for number in range(1, len(stored) + 1)]
