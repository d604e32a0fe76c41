"""The client library's connection; messages are handed over where they are read, without a queue and a task each."""

from __future__ import annotations

from collections.abc import Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from swe_ai_fleet.adapters.jetstream.messages import Message, read_headers


class NatsClient(Client):
    """A client that says nothing to a server without TLS where it is to speak TLS.

    The client library takes the server's word for it, and with that the word of whoever stands in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heard: dict[Subscription | None, Callable[[Message], None]] = {}

    async def hear(self, subject: str, deliver: Callable[[Message], None], queue: str = "") -> Subscription:
        """Have messages of a subject handed over as they are read."""
        subscription = await self.subscribe(subject, queue)  # pyright: ignore[reportUnknownMemberType]
        self._heard[subscription] = deliver
        return subscription

    async def forget(self, subscription: Subscription) -> None:
        """Have no more of them."""
        self._heard.pop(subscription, None)
        await subscription.unsubscribe()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if (deliver := self._heard.get(self._subs.get(sid))) is not None:
            headers_found = read_headers(headers) if headers else {}
            try:
                deliver(Message(subject=subject.decode(), reply=reply.decode(), data=data, headers=headers_found))
            except Exception as error:  # noqa: BLE001 - the edge: a fault of one who hears is not the connection's
                await self._error_cb(error)

    def _connect_command(self) -> bytes:
        tls_required: object = self._server_info.get("tls_required")  # pyright: ignore[reportUnknownMemberType]
        server = self._current_server
        asked = "tls" in self.options or (server is not None and server.uri.scheme == "tls")
        if asked and not tls_required:
            raise nats.errors.Error("the server has no TLS, but nats_ca or a tls:// address requires it")
        return super()._connect_command()
