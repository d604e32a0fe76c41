"""Results on `agent.results.>`: each execution's own stands once on its subject."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import aclosing

from swe_ai_fleet.adapters.jetstream import subjects
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import Backoff, Refused
from swe_ai_fleet.adapters.jetstream.messages import EXPECTED_SEQUENCE, MESSAGE_ID, StoredMessage
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.requests import Ask, ask
from swe_ai_fleet.adapters.jetstream.streams import last_message

EXECUTION_HEADER = "Fleet-Execution-Id"


class JetStreamResults:
    """A `ResultBus`."""

    def __init__(
        self, connection: Connection, *, timeout: float, stamp: Callable[[], Mapping[str, str]] = dict[str, str]
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._stamp = stamp

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        """Publish a result once; False when it stands there already. Raises ResourceExhausted, Unavailable.

        An orchestrator publishes what a host has: of the default tenant's results subjects could be another tenant's.
        """
        if self._connection.is_host:
            content = base64.b64encode(payload).decode()
            document = {"task_id": task_id, "agent_id": agent_id, "payload": content, "headers": dict(self._stamp())}
            return bool((await ask(self._connection, Ask.RESULT, tenant, execution_id, document))["published"])
        subject = subjects.result_subject(tenant, task_id, agent_id)
        headers = {
            MESSAGE_ID: f"{subject}/{execution_id}",
            EXECUTION_HEADER: execution_id,
            **self._stamp(),
        }
        backoff = Backoff.lasting(self._timeout)
        unanswered = 0
        while True:
            last = await last_message(self._connection, subjects.RESULTS, subject, timeout=self._timeout)
            if last is not None and await self._stands(last, execution_id):
                # After a publish whose answer got lost, what stands there is what this call published.
                return unanswered > 0
            headers[EXPECTED_SEQUENCE] = str(last.sequence if last is not None else 0)
            try:
                ack = await self._connection.publish(subject, payload, headers=headers, timeout=None, backoff=backoff)
            except Refused as refusal:
                unanswered += refusal.unanswered
                await backoff.wait(refusal)
                continue
            return not ack.duplicate or unanswered + ack.unanswered > 0

    async def _stands(self, last: StoredMessage, execution_id: str) -> bool:
        if last.headers.get(EXECUTION_HEADER) == execution_id:
            return True
        # Another attempt at the task came later; ours may stand before it.
        stored = messages(self._connection, subjects.RESULTS, last.subject, follow=False, timeout=self._timeout)
        async with aclosing(stored):
            async for message in stored:
                if message is not None and message.headers.get(EXECUTION_HEADER) == execution_id:
                    return True
        return False
