"""The client library's connection: how it logs in, how it is protected, and messages handed over where they are read.

That is without a queue and a task for each subscription.
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

    `host` is the login of a host of agents (`<id>.<secret>`), which may do what is its own alone. A login that stands
    in the address goes before a token.

    With `ca`, the PEM file of the authority behind the server's certificate, or a `cert` and its `key` to show, nothing
    is said to a server without TLS. Files are read at every connection, so that they may change.
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
        """Whether they ask for TLS."""
        return bool(self.ca or self.cert)

    def inbox(self) -> str:
        """Where answers go: for an nkey and a host a place of its own, which others cannot listen to.

        Raises PreconditionFailed where the seed cannot be read.
        """
        if self.host:
            return host_inbox(self.host.partition(".")[0])
        return f"{INBOX}.{_public_key(self.nkey)}" if self.nkey else INBOX

    def context(self) -> ssl.SSLContext | None:
        """What TLS is spoken with; None: the client library's own, where the server asks for it.

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
    """Where the answers to a host of agents go."""
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
    """A client that says nothing to a server without TLS where it is to speak TLS.

    The client library takes the server's word for it, and with that the word of whoever stands in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heard: dict[Subscription | None, Callable[[NatsMessage], None]] = {}

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
        """Connect and log in; the inbox below which `answer` hears what comes.

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
                    # Until a server asks the orchestrators about a login in vain it takes three seconds.
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
                await self.hear(f"{inbox}.*", answer)
                # The library takes a ping of a server that is still deciding for its consent.
                await self.flush()
            if self.is_closed:
                raise nats.errors.ConnectionClosedError
        except (nats.errors.Error, OSError, TimeoutError) as error:
            # After a handshake that failed the client library would wait for an end that never comes.
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

    async def hear(self, subject: str, deliver: Callable[[NatsMessage], None], queue: str = "") -> Subscription:
        """Deliver messages of a subject as they are read."""
        subscription = await self.subscribe(subject, queue)  # pyright: ignore[reportUnknownMemberType]
        self._heard[subscription] = deliver
        return subscription

    def write(self, subject: str, head: bytes, payload: bytes, *, reply: str = "") -> None:
        """Send a message at once, behind what waits for the client library's own task, which is two turns late."""
        sizes = f"{len(head)} {len(head) + len(payload)}" if head else f"{len(payload)}"
        command = f"{'H' if head else ''}PUB {subject} {reply} {sizes}\r\n".encode()
        assert self._transport is not None
        waiting, self._pending, self._pending_data_size = self._pending, [], 0
        self._transport.write(b"".join((*waiting, command, head, payload, b"\r\n")))

    async def drained(self) -> None:
        """Wait while the connection has more to send than it should; a broken one is told where it is read."""
        if self._transport is not None:
            with suppress(OSError):
                await self._transport.drain()

    async def forget(self, subscription: Subscription) -> None:
        """End a subscription."""
        self._heard.pop(subscription, None)
        await subscription.unsubscribe()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if (deliver := self._heard.get(self._subs.get(sid))) is not None:
            headers_found = read_headers(headers) if headers else {}
            try:
                deliver(NatsMessage(subject=subject.decode(), reply=reply.decode(), data=data, headers=headers_found))
            except Exception as error:  # noqa: BLE001 - the edge: a fault of one who hears is not the connection's
                await self._error_cb(error)

    def _connect_command(self) -> bytes:
        tls_required: object = self._server_info.get("tls_required")  # pyright: ignore[reportUnknownMemberType]
        server = self._current_server
        wants_tls = "tls" in self.options or (server is not None and server.uri.scheme == "tls")
        if wants_tls and not tls_required:
            raise nats.errors.Error("the server has no TLS, but nats_ca or a tls:// address requires it")
        return super()._connect_command()
