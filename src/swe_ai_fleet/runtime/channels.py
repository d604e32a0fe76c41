"""Channels to the fleet's services, and where they are: their addresses, TLS and tokens, from settings and cards.

A card is the file in which a running process publishes its address and token in its home.
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
"""Schemes before `host:port` that choose TLS or plain text, whatever the settings are."""


def named_field(error: grpc.aio.AioRpcError) -> str | None:
    """The field of the request that a fault names, empty where it names none; None where no service answered."""
    # Imported here, since the import takes as long as a call.
    from swe_ai_fleet.contract import error_details

    details = error_details(error.trailing_metadata())
    return None if details is None else details.field


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTls:
    """How a TLS channel verifies its server and authenticates itself.

    Attributes:
        ca: PEM file of the authority behind the server's certificate; None: gRPC's public authorities.
        cert: PEM certificate shown to the server; None: no client certificate.
        name: The expected name in the server's certificate; empty: the host of the address.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    name: str = ""


def channel_tls(settings: Settings | ClientSettings, address: str) -> ChannelTls | None:
    """The TLS of calls to the service at an address; None: without TLS.

    TLS is used if the address begins with `grpcs://`, or if settings name an authority or a certificate of this
    process and it does not begin with `grpc://`. A remote address without TLS and without `grpc://` is logged as a
    warning, since tokens go there. Raises PreconditionFailed for a certificate of our own that cannot be read.
    """
    if not _protected(settings, address):
        if sends_token_unprotected(settings, address) and not address.startswith(PLAIN):
            hint = "set FLEET_TLS_CA or use grpcs://; use grpc:// only on a network that is protected otherwise"
            # Commands that only call a fleet have no log, and do not load structlog.
            if structlog := sys.modules.get("structlog"):
                structlog.get_logger(__name__).warning("channel.token_in_the_clear", server=address, hint=hint)
        return None
    return ChannelTls(
        ca=settings.tls_ca,
        cert=settings.tls_client_cert,
        key=settings.tls_client_key,
        name=certificate_name(settings.tls_cert, address),
    )


def sends_token_unprotected(settings: Settings | ClientSettings, address: str) -> bool:
    """Whether a token for the service at an address crosses a network without TLS."""
    return not _protected(settings, address) and not is_local(_host(address))


def own_address(settings: Settings | ClientSettings, address: str) -> str:
    """The address of this process's own server, with `grpcs://` where it uses TLS."""
    return f"{PROTECTED}{address}" if settings.tls_cert is not None else address


def card_entry(tls: ChannelTls | None) -> dict[str, str] | None:
    """The TLS of a channel as stored in a card; None without TLS."""
    if tls is None:
        return None
    files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
    return {"name": tls.name} | {name: str(path.absolute()) for name, path in files.items() if path is not None}


def read_channel_tls(entry: object) -> ChannelTls | None:
    """The TLS that `card_entry` stored; None without TLS."""
    if not is_object(entry):
        return None
    files = {name: Path(path) for name in ("ca", "cert", "key") if (path := string(entry.get(name)))}
    return ChannelTls(name=string(entry.get("name")), **files)


def target(address: str) -> str:
    """The `host:port` of an address, without its scheme."""
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
    """The credentials for gRPC. Raises PreconditionFailed for files that cannot be read, naming the setting."""
    import grpc

    if (tls.cert is None) != (tls.key is None):
        field = "tls_client_key" if tls.key is None else "tls_client_cert"
        raise PreconditionFailed("a certificate needs its key, and a key its certificate", field=field, hint="set both")
    return grpc.ssl_channel_credentials(
        root_certificates=read_file(tls.ca, "tls_ca") if tls.ca else None,
        private_key=read_file(tls.key, "tls_client_key") if tls.key else None,
        certificate_chain=read_file(tls.cert, "tls_client_cert") if tls.cert else None,
    )


def certificate_name(certificate: Path | None, address: str) -> str:
    """The name to expect in our own server's certificate when it is called by a local address such as 0.0.0.0.

    Empty where the certificate includes that address, where the server is remote, or where it has no names.
    """
    host = _host(address)
    if certificate is None or not is_local(host):
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
    """The TLS problem in the details of a failed call, and a hint; None where they show none."""
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
        # gRPC's only message for a server that hangs up during the handshake, or at the first bytes without one.
        "Socket closed",
        "the server closed the connection at once",
        "it may require TLS (set FLEET_TLS_CA) or for a certificate (FLEET_TLS_CLIENT_CERT)",
    ),
)


def is_local(host: str) -> bool:
    """Whether a host is this machine: localhost, a loopback address or the unspecified one."""
    if (address := address_of(host)) is None:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _protected(settings: Settings | ClientSettings, address: str) -> bool:
    configured = settings.tls_ca is not None or settings.tls_client_cert is not None
    return address.startswith(PROTECTED) or (configured and not address.startswith(PLAIN))


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
    """The address and token of a fleet; `pid` is 0 where only an address was given.

    `context` is the address of its context service, which accepts the same token; empty: it has none. `http` is the
    base URL of its gateway; empty: it has none, or only an address was given. `tls` is the TLS of calls to it; None:
    without TLS.
    """

    address: str
    token: str = field(default="", repr=False)
    pid: int = 0
    context: str = ""
    http: str = ""
    tls: ChannelTls | None = None


def running_fleet(home: Path) -> FleetAddress | None:
    """The fleet running on a home, according to its card there; None without a card, or when its process is gone."""
    return _address_in(home / "fleet.json")


def find_context(settings: Settings | ClientSettings, *, server: str = "", token: str = "") -> FleetAddress | None:
    """The context service at an address or in the settings, else that of the fleet running on the home.

    Else the one running there alone. A home's token is only sent to the address it was made for.
    """
    fleet, token = running_fleet(settings.home), token.strip()
    services = (
        []
        if fleet is None or not fleet.context
        else [FleetAddress(address=fleet.context, token=fleet.token, pid=fleet.pid, tls=fleet.tls)]
    )
    if (standalone := _address_in(settings.home / "context.json")) is not None:
        services.append(standalone)
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
    """The content of a process's card; empty without one."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return {}


def _address_in(path: Path) -> FleetAddress | None:
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


def find_fleet(settings: Settings | ClientSettings, *, server: str, token: str) -> FleetAddress | None:
    """The fleet at an address, else the one running on the home.

    The home's token is only sent to the address it was made for.
    """
    # A token that was read from a file may end with a newline, which is invalid in a header.
    running, token = running_fleet(settings.home), token.strip()
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
