"""What receivers of webhooks check, and the example that shows it."""

from __future__ import annotations

import base64
import hmac
import time
from types import SimpleNamespace
from typing import Any

import pytest

from swe_ai_fleet.extensions.webhooks import InvalidSignature, verify
from tests.documented import blocks

# The vector that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another key of 24 bytes!").decode()
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
TIMESTAMP = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


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


def test_the_example_for_receivers_runs() -> None:
    """With what a web framework hands a receiver."""
    at = str(int(time.time()))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{MESSAGE_ID}.{at}.".encode() + BODY, "sha256")
    signed = headers(timestamp=at, signature=f"v1,{base64.b64encode(digest).decode()}")
    names: dict[str, Any] = {"secret": SECRET, "body": BODY, "request": SimpleNamespace(headers=signed)}
    exec(blocks("docs/notifications.md")[1][1], names)
    assert "event_id" in names
