"""Webhooks without a network: signatures, payloads, what chats are shown, when what failed is tried again."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.adapters.webhook_sender import WebhookRules, WebhookSender
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound, ResourceExhausted
from swe_ai_fleet.domain.event import (
    CONTROL_SUBJECT,
    ApprovalAwaited,
    ApprovalResolved,
    Event,
    EventBody,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    StoredEvent,
    Writer,
)
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.task import ApprovalPolicy, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.notifications import InvalidSignature, verify
from swe_ai_fleet.notifications import book as books
from swe_ai_fleet.notifications.book import WebhookBook
from swe_ai_fleet.notifications.deliveries import MAX_ATTEMPTS_KEPT, Attempt, DeliveryBook, DeliveryStatus
from swe_ai_fleet.notifications.gathering import notification_of
from swe_ai_fleet.notifications.message import MAX_BODY_BYTES, message
from swe_ai_fleet.notifications.notification import Notification, requested, trial, wants
from swe_ai_fleet.notifications.retrying import (
    MAX_RETRY_AFTER_SECONDS,
    WAITS,
    Reply,
    Schedule,
    retry_after_seconds,
)
from swe_ai_fleet.notifications.signing import PREFIX, key_of, new_secret, signed_headers
from swe_ai_fleet.notifications.webhook import USUAL, EventType, Filter, Format, Webhook, check_webhook, default_id
from swe_ai_fleet.testing.memory_key_value import MemoryKeyValue
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.secrets import Secrets
from tests.markdown_v2 import parse
from tests.unit.test_http_tool import PUBLIC, Names

# The vector that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
TIMESTAMP = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
PLAIN = Secrets()
NASTY = (
    "`<!channel> @everyone @here <@U123> </b> *bold* _x_ [a](http://evil) \u202e ```\n# Execution completed\x00 & \\"
)
TASK = Task(
    task_id="task-1", kind=TaskKind.ORCHESTRATE, description="Add a greeting", repo=RepoRef(location="/srv/app")
)
REQUEST = ApprovalRequest(
    approval_id="agent-dev-1.call-1",
    agent_id="agent-dev-1",
    policy=ApprovalPolicy.PLAN,
    goal="A greeting",
    approach="Append it.",
    call=ToolCall(call_id="1", model_call_id="1", name="propose_approach", arguments="{}"),
    step=1,
    requested_at="2026-01-01T00:00:00+00:00",
    reasons=("it writes",),
)


def a_webhook(**fields: object) -> Webhook:
    return replace(Webhook(webhook_id="w", url="https://example.org/hook", secret=SECRET), **fields)


def hmac_sha256(key: bytes, data: bytes) -> bytes:
    """RFC 2104 by the letter, with nothing but the hash."""
    key = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + data).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()


def headers(**changed: str) -> dict[str, str]:
    given_ = {
        "Webhook-Id": MESSAGE_ID,
        "Webhook-Timestamp": str(TIMESTAMP),
        "Webhook-Signature": SIGNATURE,
    }
    return given_ | {name.replace("_", "-").title(): value for name, value in changed.items()}


def test_the_known_vector() -> None:
    assert signed_headers(SECRET, MESSAGE_ID, TIMESTAMP, BODY)["webhook-signature"] == SIGNATURE
    assert verify(SECRET, headers(), BODY, now=TIMESTAMP + 299) == MESSAGE_ID


@given(st.binary(min_size=24, max_size=64), st.text(alphabet="abc/_-123", min_size=1), st.binary())
def test_signatures_are_those_of_another_implementation(key: bytes, message_id: str, body: bytes) -> None:
    secret = PREFIX + base64.b64encode(key).decode()
    made = signed_headers(secret, message_id, TIMESTAMP, body)
    expected = hmac_sha256(key, f"{message_id}.{TIMESTAMP}.".encode() + body)
    assert made["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    assert verify(secret, made, body, now=TIMESTAMP) == message_id
    with pytest.raises(InvalidSignature):
        verify(secret, made, body + b" ", now=TIMESTAMP)


@pytest.mark.parametrize(
    ("changed", "now"),
    [
        ({}, TIMESTAMP + 301),
        ({}, TIMESTAMP - 301),
        ({"webhook_id": "msg_other"}, TIMESTAMP),
        ({"webhook_id": ""}, TIMESTAMP),
        ({"webhook_timestamp": str(TIMESTAMP + 1)}, TIMESTAMP),
        ({"webhook_timestamp": "soon"}, TIMESTAMP),
        ({"webhook_timestamp": "9" * 5_000}, TIMESTAMP),
        ({"webhook_signature": SIGNATURE.replace("v1,", "v2,")}, TIMESTAMP),
        ({"webhook_signature": "v1,"}, TIMESTAMP),
        ({"webhook_signature": "\udcff"}, TIMESTAMP),
        ({"webhook_signature": " ".join(["v1,x"] * 40) + f" {SIGNATURE}"}, TIMESTAMP),
    ],
)
def test_what_is_not_genuine(changed: dict[str, str], now: float) -> None:
    with pytest.raises(InvalidSignature):
        verify(SECRET, headers(**changed), BODY, now=now)


def test_one_of_several_signatures_is_enough_while_secrets_change() -> None:
    several = f"v1a,abc v1,AAAA {SIGNATURE}"
    assert verify(SECRET, headers(webhook_signature=several), BODY, now=TIMESTAMP) == MESSAGE_ID
    with pytest.raises(InvalidSignature):
        verify(new_secret(), headers(webhook_signature=several), BODY, now=TIMESTAMP)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_ü"])
def test_what_is_no_secret(secret: str) -> None:
    with pytest.raises(InvalidRequest) as fault:
        key_of(secret)
    assert fault.value.field == "secret"
    assert len(key_of(new_secret())) == 32
    assert new_secret() != new_secret()


def test_waits_grow_for_about_a_day() -> None:
    schedule, failed = Schedule(), Reply(error="no answer")
    waits = [schedule.wait(attempt, failed, lambda: 0.0) for attempt in range(1, len(WAITS) + 2)]
    assert waits[:5] == [5.0, 30.0, 120.0, 600.0, 3_600.0]
    assert waits[-1] is None
    assert all(one <= other for one, other in pairwise(WAITS))
    assert 22 * 3_600 < sum(WAITS) < 26 * 3_600
    assert schedule.wait(1, failed, lambda: 1.0) == pytest.approx(5.5)


def test_a_receiver_says_when_to_come_back() -> None:
    schedule = Schedule(spread=0)
    assert schedule.wait(1, Reply(http_status=429, retry_after=90), lambda: 0) == 90
    assert schedule.wait(3, Reply(http_status=503, retry_after=1), lambda: 0) == 120
    assert schedule.wait(1, Reply(http_status=503, retry_after=1e9), lambda: 0) == MAX_RETRY_AFTER_SECONDS
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_seconds("120", now) == 120
    assert retry_after_seconds("Thu, 01 Jan 2026 00:01:00 GMT", now) == 60
    assert retry_after_seconds("Wed, 31 Dec 2025 00:01:00 GMT", now) == 0
    assert retry_after_seconds("-5", now) == retry_after_seconds("", now) == retry_after_seconds("soon", now) == 0


@given(st.text(max_size=80))
def test_retry_after_reads_anything(text: str) -> None:
    assert retry_after_seconds(text, datetime(2026, 1, 1, tzinfo=UTC)) >= 0


def test_replies() -> None:
    assert Reply(http_status=204).delivered
    assert not Reply(http_status=302).delivered
    assert not Reply().delivered
    assert Reply(http_status=410).gone


class Told:
    """An execution that tells of itself, in a log of memory."""

    def __init__(self, task: Task = TASK) -> None:
        self.log = MemoryLog()
        self.task = task

    async def tell(self, body: EventBody, *, agent_id: str = "_") -> StoredEvent:
        task = self.task
        writer = Writer(
            tenant=task.tenant, execution_id=task.execution_id, task_id=task.task_id, agent_id=agent_id, generation=0
        )
        return await self.log.tell(writer, body)

    async def begin(self) -> StoredEvent:
        repository = PinnedRepository(tenant="default", location="/srv/app", commit="c" * 40)
        return await self.tell(ExecutionStarted(task=self.task, repository=repository, fingerprint="f"))

    async def notification(self, stored: StoredEvent, mask: Secrets = PLAIN) -> Notification:
        made = await notification_of(stored, self.log, mask)
        assert made is not None
        return made


def body_of(webhook: Webhook, notification: Notification) -> dict[str, object]:
    return json.loads(message(webhook, notification, TIMESTAMP).body)


async def test_an_end_in_a_few_facts() -> None:
    told = Told()
    await told.begin()
    usage = Usage(prompt_tokens=10, completion_tokens=5, model_calls=2, cost=0.5)
    end = ExecutionFinished(status=ExecutionStatus.FAILED, error=f"it said {SECRET}", usage=usage, duration_ms=1_200)
    stored = await told.tell(end)
    made = await told.notification(stored, Secrets((SECRET,)))
    body = body_of(a_webhook(), made)
    assert (body["type"], body["timestamp"], made.event_id) == ("execution.finished", stored.event.at, stored.event.id)
    data = body["data"]
    assert isinstance(data, dict)
    assert (data["execution_id"], data["task_id"], data["role"]) == (TASK.execution_id, "task-1", "DEV")
    assert (data["status"], data["error"], data["duration_ms"]) == ("failed", "it said [masked]", 1_200)
    assert data["usage"]["prompt_tokens"] == 10
    assert made == await told.notification(stored, Secrets((SECRET,)))
    sent = message(a_webhook(), made, TIMESTAMP)
    assert verify(SECRET, sent.headers, sent.body, now=TIMESTAMP) == made.event_id
    assert "." not in made.event_id


async def test_what_is_asked_and_decided_is_told_once() -> None:
    told = Told()
    await told.begin()
    first = await told.tell(ApprovalAwaited(request=REQUEST), agent_id=CONTROL_SUBJECT)
    again = await told.tell(ApprovalAwaited(request=REQUEST), agent_id=CONTROL_SUBJECT)
    other_request = replace(REQUEST, approval_id="agent-dev-2.call-1")
    other = await told.tell(ApprovalAwaited(request=other_request), agent_id=CONTROL_SUBJECT)
    decided = ApprovalResolution(
        approval_id=REQUEST.approval_id, decision=ApprovalDecision.APPROVED, text="yes", approver="ada"
    )
    person = await told.tell(ApprovalResolved(resolution=decided), agent_id=CONTROL_SUBJECT)
    clock = await told.tell(
        ApprovalResolved(resolution=replace(decided, decision=ApprovalDecision.REJECTED)), agent_id=CONTROL_SUBJECT
    )
    made = [await notification_of(one, told.log, PLAIN) for one in (first, again, other, person, clock)]
    asked, repeated, also, resolved_, late = made
    assert repeated is None
    assert late is None
    assert asked is not None
    assert also is not None
    assert resolved_ is not None
    assert len({asked.event_id, also.event_id, resolved_.event_id}) == 3
    assert "." not in asked.event_id
    approval = body_of(a_webhook(), asked)["data"]["approval"]  # type: ignore[index]
    assert (approval["approval_id"], approval["agent_id"]) == (REQUEST.approval_id, "agent-dev-1")
    assert (approval["proposal"], approval["reasons"]) == ("Append it.", ["it writes"])
    answer = body_of(a_webhook(), resolved_)["data"]["approval"]  # type: ignore[index]
    assert (answer["decision"], answer["agent_id"], answer["approver"]) == ("approved", "agent-dev-1", "ada")


async def test_what_the_log_does_not_have_any_more() -> None:
    stored = await Told().tell(ExecutionFinished(status=ExecutionStatus.COMPLETED))
    with pytest.raises(NotFound):
        await notification_of(stored, MemoryLog(), PLAIN)
    told = Told()
    assert await notification_of(await told.tell(_silent()), told.log, PLAIN) is None


def _silent() -> EventBody:
    from swe_ai_fleet.domain.event import ResultPublished

    return ResultPublished()


async def test_filters() -> None:
    told = Told(replace(TASK, role=Role.QA))
    start = await told.notification(await told.begin())
    end = await told.notification(await told.tell(ExecutionFinished(status=ExecutionStatus.NO_WINNER)))
    asked = await told.notification(await told.tell(ApprovalAwaited(request=REQUEST), agent_id=CONTROL_SUBJECT))

    def heard(notification: Notification, *, events: tuple[EventType, ...] = tuple(EventType), **only: object) -> bool:
        return wants(a_webhook(events=events, filter=replace(Filter(), **only)), notification)

    assert heard(start)
    assert not heard(start, events=USUAL)
    assert heard(end, events=USUAL)
    assert heard(end, task_id_prefix="task-", roles=(Role.QA,), statuses=(ExecutionStatus.NO_WINNER,))
    assert not heard(end, task_id_prefix="other")
    assert not heard(end, roles=(Role.DEV,))
    assert not heard(end, statuses=(ExecutionStatus.COMPLETED,))
    assert heard(asked, statuses=(ExecutionStatus.COMPLETED,))
    part = replace(end, part=True)
    assert not heard(part)
    assert heard(part, include_parts=True)
    assert heard(replace(asked, part=True))


def nasty(event: Event | None = None, text: str = NASTY) -> Notification:
    event = event or Writer(tenant="default", execution_id="e", task_id="t").event(_silent(), ordinal=1, at="now")
    request = replace(REQUEST, approach=text, goal=text, reasons=(text,), agent_id="agent")
    return requested(event, TASK, request, PLAIN)


def test_slack_shows_words_as_words() -> None:
    text = str(body_of(a_webhook(format=Format.SLACK), nasty())["text"])
    for mark in ("<!", "<@", "</b>", "@everyone", "@here", "```", "\x00", "\u202e"):
        assert mark not in text
    assert "&lt;!channel&gt;" in text
    # What is a stranger's stands between backticks on its line, so that nothing of it is a line of ours.
    lines = text.split("\n")
    assert lines[0] == "*An agent waits for approval*"
    assert all(line.startswith("*") and line.count("`") == 2 and line.endswith("`") for line in lines[1:])


def test_discord_mentions_nobody() -> None:
    body = body_of(a_webhook(format=Format.DISCORD), nasty(text=NASTY * 200))
    content = str(body["content"])
    assert body["allowed_mentions"] == {"parse": []}
    assert "@everyone" not in content
    assert len(content) <= 2_000
    assert all(line.count("`") == 2 for line in content.split("\n")[1:])


def test_telegram_takes_it_as_it_is() -> None:
    webhook = a_webhook(format=Format.TELEGRAM, url="https://api.telegram.org/bot1:x/sendMessage?chat_id=-100123&x=1")
    body = body_of(webhook, nasty(text=NASTY * 300))
    text = str(body["text"])
    assert (body["chat_id"], body["parse_mode"]) == ("-100123", "MarkdownV2")
    shown = parse(text).text
    assert len(shown) <= 4_096
    assert "@everyone" not in shown
    assert "[a](http://evil)" in shown


@given(st.text(max_size=400))
def test_no_text_breaks_a_format(text: str) -> None:
    made = nasty(text=text)
    for form in Format:
        url = "https://example.org/sendMessage?chat_id=1"
        body = body_of(a_webhook(format=form, url=url), made)
        if form is Format.TELEGRAM:
            parse(str(body["text"]))
        elif form is not Format.JSON:
            said = str(body.get("text") or body.get("content"))
            assert all(line.count("`") == 2 for line in said.split("\n")[1:])


@pytest.mark.parametrize("character", ["\x01", "é", "\U0001f600", '"', "\udfff"])
def test_payloads_are_small(character: str) -> None:
    sent = message(a_webhook(), nasty(text=character * 100_000), TIMESTAMP)
    assert len(sent.body) < MAX_BODY_BYTES


def test_secrets_are_shown_nowhere() -> None:
    slack = a_webhook(format=Format.SLACK, url="https://hooks.slack.com/services/T0/B0/very-secret")
    assert slack.shown_url == "https://hooks.slack.com/…"
    plain = a_webhook(url="https://example.org:8443/hook?key=very-secret")
    assert plain.shown_url == "https://example.org:8443/hook?…"
    sent = message(slack, trial(slack, name="1", at="now"), TIMESTAMP)
    for text in (repr(slack), repr(plain), repr(sent)):
        assert "very-secret" not in text
        assert SECRET not in text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"webhook_id": "a.b"}, "webhook_id"),
        ({"webhook_id": "-a"}, "webhook_id"),
        ({"secret": "hush"}, "secret"),
        ({"events": (EventType.TEST,)}, "events"),
        ({"filter": Filter(task_id_prefix="x" * 200)}, "filter.task_id_prefix"),
        ({"filter": Filter(statuses=(ExecutionStatus.PENDING,))}, "filter.statuses"),
        ({"format": Format.TELEGRAM}, "url"),
        ({"format": Format.TELEGRAM, "url": "https://[x/?chat_id=1"}, "url"),
    ],
)
def test_webhooks_that_could_never_work(fields: Mapping[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as fault:
        check_webhook(a_webhook(**fields))
    assert fault.value.field == field


NAMES = Names(
    {
        "example.org": [[PUBLIC]],
        "inside.example.org": [["10.0.0.7"]],
        "both.example.org": [[PUBLIC, "127.0.0.1"]],
        "metadata.google.internal": [["169.254.169.254"]],
        "localhost": [["127.0.0.1"]],
    }
)
RULES = WebhookRules(private_hosts=("127.0.0.1:4000", "build.corp:8080"), network=Network(resolver=NAMES))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/hook",
        "ftp://example.org/hook",
        "https://example.org:22/hook",
        "https://user:pw@example.org/hook",
        "https://inside.example.org/",
        "https://both.example.org/",
        "https://metadata.google.internal/computeMetadata",
        "https://localhost/",
        "https://127.0.0.1/",
        "https://127.0.0.1:8443/",
        "http://127.0.0.1:4001/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://168.63.129.16/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://127.1/",
        "https://xn--a.ex_ample.org/",
        "https://build.corp.evil.example:8080/",
        "file:///etc/passwd",
        "//example.org",
        "",
    ],
)
async def test_addresses_that_webhooks_cannot_have(url: str) -> None:
    with pytest.raises(InvalidRequest) as fault:
        await RULES.check(url)
    assert fault.value.field == "url"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/hook?x=1",
        "https://unknown.example.org/",
        "http://127.0.0.1:4000/",
        "http://build.corp:8080",
    ],
)
async def test_addresses_that_webhooks_can_have(url: str) -> None:
    await RULES.check(url)


async def test_names_that_nobody_answers_for_take_up_no_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Semaphore(0), threading.Event()

    def silent(*_: object, **__: object) -> list[object]:
        asked.release()
        answered.wait(20)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    senders = [WebhookSender(WebhookRules(), seconds=15, tls=ssl.create_default_context()) for _ in range(10)]
    sent = replace(message(a_webhook(), nasty(text="x"), TIMESTAMP), url="https://dead.example.org/")
    sending = [asyncio.create_task(sender.send(sent)) for sender in senders * 4]
    try:
        async with asyncio.timeout(10):
            for _ in senders:
                assert await asyncio.to_thread(asked.acquire)
    finally:
        answered.set()
        replies = await asyncio.gather(*sending)
        for sender in senders:
            await sender.close()
    assert {reply.error for reply in replies} == {"the name dead.example.org cannot be resolved: no such name"}


def test_private_hosts_are_named_one_by_one() -> None:
    with pytest.raises(InvalidRequest) as fault:
        WebhookRules(private_hosts=("*.corp:8080",))
    assert fault.value.field == "webhook_private_hosts"


async def test_the_book_keeps_a_webhook_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, changed = MemoryKeyValue(), asyncio.Event()
    async with WebhookBook(store, changed=changed.set) as book, WebhookBook(store) as replica:
        made, existed = await book.add(a_webhook(), start_sequence=7, same_secret=True)
        assert (existed, made.start_sequence, made.active) == (False, 7, True)
        same, existed = await replica.add(a_webhook(secret=new_secret()), start_sequence=9, same_secret=False)
        assert (existed, same) == (True, made)
        for other in (
            a_webhook(secret=new_secret()),
            a_webhook(url="https://example.org/x"),
            a_webhook(format=Format.SLACK),
        ):
            with pytest.raises(AlreadyExists):
                await book.add(other, start_sequence=9, same_secret=True)
        await book.given_up(made, "HTTP 500")
        await book.given_up(made, "HTTP 502")
        kept = await replica.get("w")
        assert (kept.dead_letters, kept.last_error) == (2, "HTTP 502")
        await book.disable(made, "gone")
        disabled = await replica.get("w")
        assert (disabled.active, disabled.disabled_reason) == (False, "gone")
        assert await book.orphans([made.consumer, "context-recorder"]) == (made.consumer,)
        await book.enable(made, start_sequence=20)
        enabled = await replica.get("w")
        assert (enabled.active, enabled.start_sequence, enabled.dead_letters) == (True, 20, 0)
        assert enabled.consumer != made.consumer
        # What is still said of the place that it had before does not count any more.
        await book.disable(made, "late")
        assert (await replica.get("w")).active
        assert await book.orphans([enabled.consumer]) == ()
        monkeypatch.setattr(books, "MAX_WEBHOOKS", 1)
        with pytest.raises(ResourceExhausted):
            await book.add(a_webhook(webhook_id="w2"), start_sequence=1, same_secret=False)
        assert await book.remove("w") is not None
        assert await book.remove("w") is None
        assert await replica.list() == ()
        async with asyncio.timeout(5):
            await changed.wait()


async def test_a_webhook_that_a_newer_version_wrote_hides_no_other() -> None:
    store = MemoryKeyValue()
    async with WebhookBook(store) as book:
        await store.put("strange", b'{"webhook_id": 3}')
        made, _ = await book.add(a_webhook(), start_sequence=1, same_secret=False)
        assert await book.list() == (made,)
        assert await book.orphans(["webhook-strange-00000000", "webhook-gone-00000000"]) == ("webhook-gone-00000000",)


def test_ids_of_webhooks_without_one() -> None:
    one = default_id("default", "https://example.org/", USUAL)
    assert one == default_id("default", "https://example.org/", tuple(reversed(USUAL)))
    assert one != default_id("default", "https://example.org/x", USUAL)
    check_webhook(a_webhook(webhook_id=one))


async def test_the_last_attempts_are_kept() -> None:
    deliveries, webhook = DeliveryBook(MemoryKeyValue()), a_webhook(consumer="webhook-w-1")
    for number in range(1, MAX_ATTEMPTS_KEPT + 11):
        await deliveries.note(
            webhook,
            Attempt(
                sequence=number,
                event_id=str(number),
                type=EventType.EXECUTION_FINISHED,
                status=DeliveryStatus.DELIVERED if number % 2 else DeliveryStatus.RETRYING,
                number=1,
                at="now",
            ),
        )
    last = await deliveries.last(webhook)
    assert (len(last), last[0].sequence, last[-1].sequence) == (MAX_ATTEMPTS_KEPT, MAX_ATTEMPTS_KEPT + 10, 11)
    assert await deliveries.taken(webhook, 13)
    assert not await deliveries.taken(webhook, 14)
    assert await deliveries.pending(webhook, 14) is None
    await deliveries.forget(webhook)
    assert await deliveries.last(webhook) == ()
