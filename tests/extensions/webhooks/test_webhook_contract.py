"""Webhooks and their messages of the contract."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

from fleet.notification.v1 import notification_pb2 as notification
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.extensions.webhooks.store import Attempt
from swe_ai_fleet.extensions.webhooks.webhook import Filter
from tests.sampling import sample

SENT_BEFORE = {
    "at_ms": "1795010100123",
    "attempt": 1147,
    "duration_ms": "742",
    "error": "error-1620",
    "event_id": "event_id-919",
    "execution_id": "execution_id-880",
    "http_status": 2902,
    "next_at_ms": "1794491700123",
    "status": "DELIVERY_STATUS_DEAD",
    "type": "webhook.test",
}
"""A delivery, written by a converter that named each field by hand (November 2026)."""


def test_a_delivery_is_sent_as_before() -> None:
    now = json_format.MessageToDict(
        to_message(notification.Delivery, sample(Attempt)), preserving_proto_field_name=True
    )
    assert {name: now.get(name) for name in SENT_BEFORE} == SENT_BEFORE


def test_a_fault_names_the_place_in_the_message() -> None:
    for roles, words in ((["dev", "chef"], "chef"), (["dev", " "], "empty")):
        request = notification.CreateWebhookRequest(filter=notification.WebhookFilter(roles=roles))
        with pytest.raises(InvalidRequest, match=words) as fault:
            from_message(Filter, request.filter)
        assert fault.value.field == "roles[1]" and "DEV" in fault.value.hint
