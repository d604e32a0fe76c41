"""How a connection logs in to NATS, and how it is protected."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from swe_ai_fleet.domain.errors import PreconditionFailed

INBOX = "_INBOX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to log in: a token, a user with a password, the path of a `.creds` file or of an nkey seed; empty for none.

    `host` is the login of a host of agents (`<id>.<secret>`), which may do what is its own alone. A login that stands
    in the address goes before a token.

    With `ca`, the PEM file of the authority behind the server's certificate, or a `cert` and its `key` to show, nothing
    is said to a server without TLS. Files are read at every connection, so that they may change.
    """

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    file: str = ""
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
