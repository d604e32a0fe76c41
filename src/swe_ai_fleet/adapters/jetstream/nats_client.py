"""The client library's connection: its login, its TLS, and messages delivered as soon as they are read.

The library itself would use a queue and a task for each subscription.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from swe_ai_fleet.adapters.jetstream.protocol import LAST_SECONDS, NatsMessage, read_headers
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable

INBOX = "_INBOX"
# A server that greets and then closes the connection refuses as well: over TLS its last word is lost at times.
_REFUSALS = ("authorization", "authentication", "unexpected eof")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsCredentials:
    """How to log in: a token, a user with a password, the path of an nkey seed; empty for none.

    `host` is the login of an agent host (`<id>.<secret>`), limited to its tenant's subjects. A login in the address
    takes precedence over a token.

    With `ca`, the PEM file of the authority behind the server's certificate, or with a client `cert` and its `key`, a
    server without TLS is refused. Files are read at every connection, so that they may change.
    """

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    nkey: str = ""
    host: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def protected(self) -> bool:
        """Whether they require TLS."""
        return bool(self.ca or self.cert)

    def inbox(self) -> str:
        """The subject prefix of answers: for an nkey or a host its own, which others cannot subscribe to.

        Raises PreconditionFailed where the seed cannot be read.
        """
        if self.host:
            return host_inbox(self.host.partition(".")[0])
        return f"{INBOX}.{_public_key(self.nkey)}" if self.nkey else INBOX

    def context(self) -> ssl.SSLContext | None:
        """The TLS context; None: the client library's default, used where the server requires TLS.

        Raises PreconditionFailed for files that cannot be used.
        """
        if not self.protected:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (ssl.SSLError, OSError) as error:
            raise PreconditionFailed(
                f"{self.ca} contains no certificates: {error}", field="nats_ca", hint="the PEM file of an authority"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key or None, password="")
            except (ssl.SSLError, OSError) as error:
                raise PreconditionFailed(
                    f"{self.cert} and {self.key} are not a certificate and its key: {error}",
                    field="nats_cert",
                    hint="PEM files that belong together, the key without a passphrase",
                ) from error
        return context


def without_logins(urls: Sequence[str]) -> str:
    """The servers of URLs, for logs and errors: a URL may carry a login."""
    return ", ".join(url.rpartition("@")[2].rpartition("/")[2] for url in urls)


def host_inbox(host_id: str) -> str:
    """The subject prefix of answers to an agent host."""
    return f"{INBOX}.{host_id}"


def _public_key(path: str) -> str:
    import nkeys

    try:
        seed = bytearray(Path(path).read_bytes().strip())
    except OSError as error:
        raise PreconditionFailed(
            f"{path} cannot be read: {error.strerror or error}", field="nats_nkey_file", hint="a file with an nkey seed"
        ) from error
    try:
        pair = cast("Any", nkeys).from_seed(seed)
        public = bytes(pair.public_key).decode()
        pair.wipe()
    except (nkeys.NkeysError, ValueError) as error:
        raise PreconditionFailed(
            f"{path} contains no nkey seed", field="nats_nkey_file", hint="one line that begins with SU"
        ) from error
    return public


class NatsClient(Client):
    """A client that refuses a server without TLS where TLS is required.

    The client library believes a server that says it has no TLS, and so believes a man in the middle.
    """

    def __init__(self) -> None:
        super().__init__()
        self._deliveries: dict[Subscription | None, Callable[[NatsMessage], None]] = {}

    async def open(
        self,
        urls: Sequence[str],
        login: NatsCredentials,
        *,
        name: str,
        seconds: float,
        answer: Callable[[NatsMessage], None],
        report: Callable[[Exception], Awaitable[None]],
        closed: Callable[[], Awaitable[None]],
    ) -> str:
        """Connect and log in; returns the inbox below which messages go to `answer`.

        Raises Unavailable where no server answers, PreconditionFailed where one refuses or is not trusted.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.connect(
                    list(urls),
                    name=name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=cast("int", 0.1),
                    # A server that asks the orchestrators about a login waits three seconds for them.
                    connect_timeout=cast("int", seconds),
                    ping_interval=10,
                    pending_size=0,  # no buffer for a lost connection, and no forced flush, which swallows cancellation
                    skip_subject_validation=True,
                    error_cb=report,
                    closed_cb=closed,
                    token=login.host or (None if any("@" in url for url in urls) else login.token) or None,
                    user=login.user or None,
                    password=login.password or None,
                    nkeys_seed=login.nkey or None,
                    inbox_prefix=login.inbox(),
                    tls=login.context(),
                )
                inbox = self.new_inbox()
                await self.subscribe_directly(f"{inbox}.*", answer)
                # The library takes a ping from a server that is still deciding for a successful login.
                await self.flush()
            if self.is_closed:
                raise nats.errors.ConnectionClosedError
        except (nats.errors.Error, OSError) as error:
            # After a failed handshake the client library would wait for ever to be closed.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.close()
            if any(word in f"{error} {self.last_error}".lower() for word in _REFUSALS):
                raise PreconditionFailed(
                    "NATS refused the credentials",
                    field="nats",
                    hint="check the token, the nkey or the credentials file",
                ) from error
            if isinstance(error, ssl.SSLCertVerificationError):
                raise PreconditionFailed(
                    f"the certificate of NATS at {without_logins(urls)} is not trusted: {error.verify_message}",
                    field="nats_ca",
                    hint="FLEET_NATS_CA must name the PEM file of its authority",
                ) from error
            raise Unavailable(
                f"no NATS server answers at {without_logins(urls)}: {error or 'timeout'}",
                hint="is the server running and reachable?",
            ) from error
        return inbox

    async def subscribe_directly(
        self, subject: str, deliver: Callable[[NatsMessage], None], queue: str = ""
    ) -> Subscription:
        """Deliver messages of a subject as they are read."""
        subscription = await self.subscribe(subject, queue)
        self._deliveries[subscription] = deliver
        return subscription

    def write(self, subject: str, head: bytes, payload: bytes, *, reply: str = "") -> None:
        """Send a message at once, after those queued for the client library's own task (two turns late)."""
        sizes = f"{len(head)} {len(head) + len(payload)}" if head else f"{len(payload)}"
        command = f"{'H' if head else ''}PUB {subject} {reply} {sizes}\r\n".encode()
        assert self._transport is not None
        waiting, self._pending, self._pending_data_size = self._pending, [], 0
        self._transport.write(b"".join((*waiting, command, head, payload, b"\r\n")))

    async def drained(self) -> None:
        """Wait while the send buffer is over its limit; the reading side reports a broken connection."""
        if self._transport is not None:
            with suppress(OSError):
                await self._transport.drain()

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        self._deliveries.pop(subscription, None)
        await subscription.unsubscribe()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if (deliver := self._deliveries.get(self._subs.get(sid))) is not None:
            headers_found = read_headers(headers) if headers else {}
            try:
                deliver(NatsMessage(subject=subject.decode(), reply=reply.decode(), data=data, headers=headers_found))
            except Exception as error:  # noqa: BLE001 - the edge: a subscriber's fault must not end the connection
                await self._error_cb(error)

    def _connect_command(self) -> bytes:
        tls_required: object = self._server_info.get("tls_required")
        server = self._current_server
        wants_tls = "tls" in self.options or (server is not None and server.uri.scheme == "tls")
        if wants_tls and not tls_required:
            raise nats.errors.Error("the server has no TLS, but nats_ca or a tls:// address requires it")
        return super()._connect_command()
