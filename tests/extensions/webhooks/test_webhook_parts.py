"""Webhooks without a network: signatures, payloads, what chats are shown, when what failed is tried again."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.task import ApprovalPolicy, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.extensions.webhooks import InvalidSignature, verify
from swe_ai_fleet.extensions.webhooks.notification import Notification, notification_of, requested
from swe_ai_fleet.extensions.webhooks.sender import (
    MAX_BODY_BYTES,
    MAX_RETRY_AFTER_SECONDS,
    WAITS,
    Reply,
    Schedule,
    message,
)
from swe_ai_fleet.extensions.webhooks.webhook import (
    Format,
    Webhook,
    new_secret,
    signed_headers,
)
from swe_ai_fleet.in_process import MemoryLog
from tests.documented import blocks
from tests.markdown_v2 import parse

# The vector that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another key of 24 bytes!").decode()
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
TIMESTAMP = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
NASTY = (
    "`<!channel> @everyone @here <@U123> </b> *bold* _x_ [a](http://evil) \u202e ```\n# Execution completed\x00 & \\"
)
TASK = Task(
    task_id="task-1", kind=TaskKind.ORCHESTRATE, description="Add a greeting", repo=RepoRef(location="/srv/app")
)
REQUEST = ApprovalRequest(
    approval_id="agent-dev-1.call-1", agent_id="agent-dev-1", policy=ApprovalPolicy.PLAN, goal="A greeting",
    approach="Append it.", call=ToolCall(call_id="1", model_call_id="1", name="propose_approach", arguments="{}"),
    step=1, requested_at="2026-01-01T00:00:00+00:00", reasons=("it writes",),
)  # fmt: skip


def a_webhook(**fields: object) -> Webhook:
    return replace(Webhook(webhook_id="w", url="https://example.org/hook", secret=SECRET), **fields)


def headers(**changed: str) -> dict[str, str]:
    plain = {"Webhook-Id": MESSAGE_ID, "Webhook-Timestamp": str(TIMESTAMP), "Webhook-Signature": SIGNATURE}
    return plain | {f"Webhook-{name.title()}": value for name, value in changed.items()}


@pytest.mark.parametrize(
    ("changed", "now", "genuine"),
    [
        ({}, TIMESTAMP + 299, True),
        ({}, TIMESTAMP + 301, False),
        ({}, TIMESTAMP - 301, False),
        ({"id": "msg_other"}, TIMESTAMP, False),
        ({"id": ""}, TIMESTAMP, False),
        ({"timestamp": str(TIMESTAMP + 1)}, TIMESTAMP, False),
        ({"timestamp": "9" * 5_000}, TIMESTAMP, False),
        ({"signature": SIGNATURE.replace("v1,", "v2,")}, TIMESTAMP, False),
        ({"signature": "v1,"}, TIMESTAMP, False),
        ({"signature": "\udcff"}, TIMESTAMP, False),
        # One of several is enough, while secrets change; but not one of any number.
        ({"signature": f"v1a,abc v1,AAAA {SIGNATURE}"}, TIMESTAMP, True),
        ({"signature": " ".join(["v1,x"] * 40) + f" {SIGNATURE}"}, TIMESTAMP, False),
    ],
)
def test_what_is_genuine(changed: dict[str, str], now: float, genuine: bool) -> None:
    if genuine:
        assert verify(SECRET, headers(**changed), BODY, now=now) == MESSAGE_ID
    for secret in (OTHER, *(() if genuine else (SECRET,))):
        with pytest.raises(InvalidSignature):
            verify(secret, headers(**changed), BODY, now=now)


def test_waits_grow_for_about_a_day_unless_the_receiver_says_when_to_come_back() -> None:
    schedule, failed = Schedule(), Reply(error="no answer")
    waits = [schedule.wait(attempt, failed, lambda: 0.0) for attempt in range(1, len(WAITS) + 2)]
    assert waits[:5] == [5.0, 30.0, 120.0, 600.0, 3_600.0]
    assert waits[-1] is None
    assert all(one <= other for one, other in pairwise(WAITS))
    assert 22 * 3_600 < sum(WAITS) < 26 * 3_600
    assert schedule.wait(1, failed, lambda: 1.0) == pytest.approx(5.5)
    for attempt, retry_after, expected in ((1, 90, 90), (3, 1, 120), (1, 1e9, MAX_RETRY_AFTER_SECONDS)):
        reply = Reply(http_status=503, retry_after=retry_after)
        assert Schedule(spread=0).wait(attempt, reply, lambda: 0) == expected


class Told:
    """An execution that tells of itself, in a log of memory."""

    def __init__(self, task: Task = TASK) -> None:
        self.log = MemoryLog()
        self.writer = ev.Writer(tenant="default", execution_id=task.execution_id, task_id=task.task_id, generation=0)
        repository = PinnedRepository(tenant="default", location="/srv/app", commit="c" * 40)
        self.start = ev.ExecutionStarted(task=task, repository=repository, fingerprint="f")

    async def tell(self, body: ev.EventBody, *, agent_id: str = "_") -> Notification | None:
        stored = await self.log.tell(replace(self.writer, agent_id=agent_id), body)
        return await notification_of(stored, self.log, lambda text: text.replace(SECRET, "[masked]"))


def body_of(webhook: Webhook, notification: Notification) -> dict[str, Any]:
    return json.loads(message(webhook, notification, TIMESTAMP).body)


async def test_what_is_asked_and_decided_is_told_once_and_masked() -> None:
    told = Told()
    await told.tell(told.start)
    other = replace(REQUEST, approval_id="agent-dev-2.call-1")
    decided = ApprovalResolution(
        approval_id=REQUEST.approval_id, decision=ApprovalDecision.APPROVED, text="yes", approver="ada"
    )
    bodies = (
        *(ev.ApprovalAwaited(request=request) for request in (REQUEST, REQUEST, other)),
        ev.ApprovalResolved(resolution=decided),
        ev.ApprovalResolved(resolution=replace(decided, decision=ApprovalDecision.REJECTED)),
        ev.ResultPublished(),
    )
    asked, repeated, also, answered, *late = [await told.tell(one, agent_id=ev.CONTROL_SUBJECT) for one in bodies]
    assert (repeated, late) == (None, [None, None])
    assert asked and also and answered
    assert len({asked.event_id, also.event_id, answered.event_id}) == 3 and "." not in asked.event_id
    approval = body_of(a_webhook(), asked)["data"]["approval"]
    assert (approval["agent_id"], approval["proposal"], approval["reasons"]) == (
        "agent-dev-1", "Append it.", ["it writes"],
    )  # fmt: skip
    answer = body_of(a_webhook(), answered)["data"]["approval"]
    assert (answer["decision"], answer["agent_id"], answer["approver"]) == ("approved", "agent-dev-1", "ada")
    ended = ev.ExecutionFinished(status=ev.ExecutionStatus.FAILED, error=f"{SECRET}!", duration_ms=1_200)
    end = await told.tell(ended)
    assert end and "." not in end.event_id
    data = body_of(a_webhook(), end)["data"]
    assert (data["role"], data["status"], data["error"], data["duration_ms"]) == ("DEV", "failed", "[masked]!", 1_200)
    # What the log does not have any more cannot be told.
    with pytest.raises(NotFound):
        await notification_of(await told.log.tell(told.writer, ended), MemoryLog(), str)


def nasty(text: str = NASTY) -> Notification:
    event = ev.Writer(tenant="default", execution_id="e", task_id="t").event(ev.ResultPublished(), ordinal=1, at="now")
    request = replace(REQUEST, approach=text, goal=text, reasons=(text,), agent_id="agent")
    return requested(event, TASK, request, str)


TELEGRAM = a_webhook(format=Format.TELEGRAM, url="https://api.telegram.org/bot1:x/sendMessage?chat_id=-100123&x=1")


@given(st.text(max_size=400))
@example(NASTY)
@example(NASTY * 300)
def test_chats_show_words_as_words_and_mention_nobody(text: str) -> None:
    made = nasty(text=text)
    slack = str(body_of(a_webhook(format=Format.SLACK), made)["text"])
    discord, telegram = body_of(a_webhook(format=Format.DISCORD), made), body_of(TELEGRAM, made)
    shown = parse(str(telegram["text"])).text
    for said in (slack, str(discord["content"])):
        # What is a stranger's stands between backticks on its line, so that nothing of it is a line of ours.
        first, *lines = said.split("\n")
        assert first.strip("*") == "An agent waits for approval"
        assert all(line.startswith("*") and line.count("`") == 2 and line.endswith("`") for line in lines)
    for mark in ("<!", "<@", "</b>", "@everyone", "@here", "```", "\x00", "\u202e"):
        assert mark not in slack
    assert discord["allowed_mentions"] == {"parse": []}
    assert "@everyone" not in f"{discord['content']}{shown}"
    assert len(str(discord["content"])) <= 2_000 and len(shown) <= 4_096
    assert (telegram["chat_id"], telegram["parse_mode"]) == ("-100123", "MarkdownV2")
    if text.startswith(NASTY):
        assert "&lt;!channel&gt;" in slack and "[a](http://evil)" in shown


def test_payloads_are_small_and_secrets_shown_nowhere() -> None:
    for character in ("\x01", "é", "\U0001f600", '"', "\udfff"):
        assert len(message(a_webhook(), nasty(text=character * 100_000), TIMESTAMP).body) < MAX_BODY_BYTES
    plain = a_webhook(url="https://example.org:8443/hook?key=very-secret")
    assert plain.shown_url == "https://example.org:8443/hook?…"
    shown = repr(plain) + repr(message(plain, nasty(), TIMESTAMP))
    assert "very-secret" not in shown and SECRET not in shown


def test_the_example_for_receivers_runs() -> None:
    """With what a web framework hands a receiver."""
    secret, body = new_secret(), b"{}"
    request = SimpleNamespace(headers=signed_headers(secret, "m-1", int(time.time()), body))
    names: dict[str, Any] = {"secret": secret, "body": body, "request": request}
    exec(blocks("docs/notifications.md")[1][1], names)
    assert "event_id" in names
