"""Channels to the fleet's own services: protected by TLS where settings or the address say so, else plain.

The place of a fleet is its address and the token it asks for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swe_ai_fleet.domain.command import address_of
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.json_values import is_object, json_object, string

if TYPE_CHECKING:
    import grpc
    import grpc.aio

    from swe_ai_fleet.client_settings import ClientSettings
    from swe_ai_fleet.settings import Settings

PROTECTED, PLAIN = "grpcs://", "grpc://"
"""What may stand before `host:port` to say how a service is called, whatever the settings are."""


def named_field(error: grpc.aio.AioRpcError) -> str | None:
    """The field of the request that a fault names, empty where it names none; None where no service answered."""
    # Only here: what it imports costs as much as a call.
    from swe_ai_fleet.contract import error_details

    details = error_details(error.trailing_metadata())
    return None if details is None else details.field


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTls:
    """How a protected channel checks its server and says who it is itself.

    Attributes:
        ca: PEM file of the authority behind the server's certificate; None: the public ones that gRPC knows.
        cert: PEM certificate shown to the server; None: none is.
        key: Its key.
        name: What the server's certificate is for, where that is not the host of the address; empty: that host.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    name: str = ""


def channel_tls(settings: Settings | ClientSettings, address: str) -> ChannelTls | None:
    """How the service at an address is called; None: without TLS.

    TLS is spoken where the address begins with `grpcs://`, or settings name an authority or a certificate of this
    process and it does not begin with `grpc://`. An address elsewhere that is called without TLS, and does not say
    so, is told in the log: tokens go there. Raises PreconditionFailed for a certificate of our own that cannot be read.
    """
    if not _protected(settings, address):
        if in_the_clear(settings, address) and not address.startswith(PLAIN):
            hint = "set FLEET_TLS_CA or use grpcs://; use grpc:// only on a network that is protected otherwise"
            # Commands that only call a fleet have no log, and load none.
            if structlog := sys.modules.get("structlog"):
                structlog.get_logger(__name__).warning("channel.token_in_the_clear", server=address, hint=hint)
        return None
    return ChannelTls(
        ca=settings.tls_ca,
        cert=settings.tls_client_cert,
        key=settings.tls_client_key,
        name=certificate_name(settings.tls_cert, address),
    )


def in_the_clear(settings: Settings | ClientSettings, address: str) -> bool:
    """Whether a token for the service at an address can be read on its way there."""
    return not _protected(settings, address) and not is_here(_host(address))


def own_address(settings: Settings | ClientSettings, address: str) -> str:
    """How this process's parts name a server that it has itself: with what says that it speaks TLS, where it does."""
    return f"{PROTECTED}{address}" if settings.tls_cert is not None else address


def card_entry(tls: ChannelTls | None) -> dict[str, str] | None:
    """How a protected channel is opened, as a card keeps it; None without TLS."""
    if tls is None:
        return None
    files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
    return {"name": tls.name} | {name: str(path.absolute()) for name, path in files.items() if path is not None}


def read_channel_tls(entry: object) -> ChannelTls | None:
    """What `card_entry` gave; None without TLS."""
    if not is_object(entry):
        return None
    files = {name: Path(path) for name in ("ca", "cert", "key") if (path := string(entry.get(name)))}
    return ChannelTls(name=string(entry.get("name")), **files)


def target(address: str) -> str:
    """The `host:port` of an address, without what says how it is called."""
    return address.removeprefix(PROTECTED).removeprefix(PLAIN)


def open_channel(address: str, tls: ChannelTls | None, *, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    """A channel to `host:port`, an async context. Nothing is sent yet.

    Raises PreconditionFailed for files that cannot be read.
    """
    import grpc.aio

    if tls is None:
        return grpc.aio.insecure_channel(target(address), options=options)
    name = (("grpc.ssl_target_name_override", tls.name),) if tls.name else ()
    return grpc.aio.secure_channel(target(address), channel_credentials(tls), options=(*options, *name))


def channel_credentials(tls: ChannelTls) -> grpc.ChannelCredentials:
    """What gRPC needs of it. Raises PreconditionFailed for files that cannot be read, naming the setting."""
    import grpc

    if (tls.cert is None) != (tls.key is None):
        field = "tls_client_key" if tls.key is None else "tls_client_cert"
        raise PreconditionFailed("a certificate needs its key, and a key its certificate", field=field, hint="set both")
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca and read_file(tls.ca, "tls_ca"),
        private_key=tls.key and read_file(tls.key, "tls_client_key"),
        certificate_chain=tls.cert and read_file(tls.cert, "tls_client_cert"),
    )


def certificate_name(certificate: Path | None, address: str) -> str:
    """The name to expect of a server of our own that is called by an address of this machine, such as 0.0.0.0.

    Empty where the certificate is for that very address, where it is somebody else's, or names nobody.
    """
    host = _host(address)
    if certificate is None or not is_here(host):
        return ""
    from swe_ai_fleet.runtime.installation.authority import host_names

    text = read_file(certificate, "tls_cert")
    try:
        names = host_names(text.decode("ascii", "replace"))
    except ValueError:
        raise PreconditionFailed(
            f"{certificate} contains no certificate", field="tls_cert", hint="a PEM chain"
        ) from None
    return "" if host in names else next((name for name in names if "*" not in name), "")


def tls_fault(details: str) -> tuple[str, str] | None:
    """What the details of a failed call say about TLS: what is wrong, and a hint; None where they say nothing."""
    return next(((message, hint) for sign, message, hint in _SIGNS if sign in details), None)


_SIGNS = (
    (
        "WRONG_VERSION_NUMBER",
        "this client uses TLS, the server does not",
        "use grpc://HOST:PORT, or unset FLEET_TLS_CA",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by an authority that this client trusts, or has expired",
        "FLEET_TLS_CA must name the PEM file of its authority",
    ),
    (
        "Hostname Verification Check failed",
        "the server's certificate does not match this address",
        "use a name that is in its certificate",
    ),
    (
        # All that gRPC tells of a server that hangs up during the handshake, or at the first word without one.
        "Socket closed",
        "the server closed the connection at once",
        "it may require TLS (set FLEET_TLS_CA) or for a certificate (FLEET_TLS_CLIENT_CERT)",
    ),
)


def is_here(host: str) -> bool:
    """Whether a host is an address or the name of the machine itself."""
    if (address := address_of(host)) is None:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _protected(settings: Settings | ClientSettings, address: str) -> bool:
    named = settings.tls_ca is not None or settings.tls_client_cert is not None
    return address.startswith(PROTECTED) or (named and not address.startswith(PLAIN))


def _host(address: str) -> str:
    return target(address).rpartition(":")[0].strip("[]")


def read_file(path: Path, field: str) -> bytes:
    """The content of a file that a setting names. Raises PreconditionFailed naming the setting."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PreconditionFailed(
            f"{path} cannot be read: {error.strerror or error}", field=field, hint=f"see FLEET_{field.upper()}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAddress:
    """Where a fleet answers and the token it asks for; `pid` is 0 where only an address was given.

    `context` is the address of its context service, which takes the same token; empty: it has none of its own. `http`
    is the base URL of its gateway; empty: it has none, or only an address was given. `tls` says how it is called; None:
    without TLS.
    """

    address: str
    token: str = field(default="", repr=False)
    pid: int = 0
    context: str = ""
    http: str = ""
    tls: ChannelTls | None = None


def running_place(home: Path) -> FleetAddress | None:
    """The fleet that runs on a home, by the card it keeps there; None without one, or when its process is gone."""
    return _place_of(home / "fleet.json")


def find_context(settings: Settings | ClientSettings, *, server: str = "", token: str = "") -> FleetAddress | None:
    """The context service named by an address or the settings, else that of the fleet that runs on the home.

    Else the one that runs there by itself. A home's token is sent to the address it was made for and to no other.
    """
    fleet, token = running_place(settings.home), token.strip()
    services = (
        []
        if fleet is None or not fleet.context
        else [FleetAddress(address=fleet.context, token=fleet.token, pid=fleet.pid, tls=fleet.tls)]
    )
    if (alone := _place_of(settings.home / "context.json")) is not None:
        services.append(alone)
    address = server or settings.context_url
    if not address:
        return services[0] if services else None
    if not token and address == settings.context_url:
        token = settings.context_token
    match = next((service for service in services if service.address == address), None)
    return FleetAddress(
        address=address,
        token=token or (match.token if match is not None else ""),
        tls=match.tls if match is not None else channel_tls(settings, address),
    )


def read_card(path: Path) -> Mapping[str, object]:
    """What a process keeps in its card; empty where there is none."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return {}


def _place_of(path: Path) -> FleetAddress | None:
    card = read_card(path)
    address, token, pid = card.get("address"), card.get("token"), card.get("pid")
    if not isinstance(address, str) or not isinstance(token, str) or not isinstance(pid, int) or not _alive(pid):
        return None
    return FleetAddress(
        address=address,
        token=token,
        pid=pid,
        context=string(card.get("context")),
        http=string(card.get("http")),
        tls=read_channel_tls(card.get("tls")),
    )


def find_place(settings: Settings | ClientSettings, *, server: str, token: str) -> FleetAddress | None:
    """The fleet named by an address, else the one that runs on the home.

    The home's token is sent to the address it was made for and to no other.
    """
    # A secret that was made of a file has the file's newline, which no header may.
    running, token = running_place(settings.home), token.strip()
    if not server:
        return running
    if running is not None and running.address == server:
        return FleetAddress(address=server, token=token or running.token, tls=running.tls)
    return FleetAddress(address=server, token=token, tls=channel_tls(settings, server))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
