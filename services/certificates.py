"""The certificate of servers, reloaded when its files change, without a restart."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.runtime.channels import read_file
from swe_ai_fleet.settings import Settings

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2 with forward secrecy and authenticated encryption; TLS 1.3 has no others."""
_Stamps = tuple[tuple[int, int, int], ...]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The files of a server with TLS.

    Attributes:
        client_ca: PEM file of the authority that must have signed gRPC callers' certificates; None: none are required.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


def server_tls(settings: Settings) -> ServerTls | None:
    """The TLS settings; None without TLS. Raises PreconditionFailed for a certificate without key or vice versa."""
    if settings.tls_cert is None and settings.tls_key is None:
        if settings.tls_client_ca is not None:
            raise PreconditionFailed(
                "client certificates need TLS", field="tls_client_ca", hint="set tls_cert and tls_key"
            )
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        field = "tls_key" if settings.tls_key is None else "tls_cert"
        raise PreconditionFailed("a certificate needs its key, and a key its certificate", field=field, hint="set both")
    return ServerTls(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


class Certificates:
    """The current content of a server's files; a broken new version is logged, and the last valid one stays in use.

    Raises PreconditionFailed, naming the setting, if the files are invalid at the start.
    """

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._stamps = self._current_stamps()
        self._loaded = _load(tls)

    def for_grpc(self) -> grpc.ServerCredentials:
        """Credentials of a gRPC server, which gets the current content of the files at every handshake."""
        served = self._loaded

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            now = self.current()
            if now is served:
                return None
            served = now
            return _configuration(now)

        dynamic: Callable[..., grpc.ServerCredentials] = grpc.dynamic_ssl_server_credentials
        # gRPC for Python either requires client certificates or never requests them.
        return dynamic(_configuration(served), renewed, self._tls.client_ca is not None)

    def for_http(self) -> ssl.SSLContext:
        """The context of a web server. It requests no client certificates, since people use browsers."""
        context = _context(self._tls)

        def renewed(handshake: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            handshake.context = self.current().context

        context.sni_callback = renewed
        return context

    def current(self) -> _Loaded:
        """The content of the files, or their last valid content."""
        stamps = self._current_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._loaded = _load(self._tls)
            except PreconditionFailed as fault:
                _log.error("tls.broken_certificate", reason=str(fault), field=fault.field)
            else:
                _log.info("tls.certificate_renewed", certificate=str(self._tls.cert))
        return self._loaded

    def _current_stamps(self) -> _Stamps:
        stamps: list[tuple[int, int, int]] = []
        for path in (self._tls.cert, self._tls.key, self._tls.client_ca):
            try:
                # A mounted secret is changed by linking another file, which may have the same time.
                status = path.stat() if path is not None else None
            except OSError:
                status = None
            stamps.append((status.st_mtime_ns, status.st_ino, status.st_size) if status else (0, 0, 0))
        return tuple(stamps)


def _load(tls: ServerTls) -> _Loaded:
    return _Loaded(
        cert=read_file(tls.cert, "tls_cert"),
        key=read_file(tls.key, "tls_key"),
        client_ca=None if tls.client_ca is None else _authority(tls.client_ca),
        context=_context(tls),
    )


def _context(tls: ServerTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    for path, field in ((tls.cert, "tls_cert"), (tls.key, "tls_key")):
        read_file(path, field)
    try:
        context.load_cert_chain(tls.cert, tls.key, password="")
    except (ssl.SSLError, OSError) as error:
        raise PreconditionFailed(
            f"{tls.cert} and {tls.key} are not a certificate and its key: {error}",
            field="tls_cert",
            hint="PEM files that belong together, the key without a passphrase",
        ) from error
    return context


def _authority(path: Path) -> bytes:
    content = read_file(path, "tls_client_ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise PreconditionFailed(f"{path} contains no certificate", field="tls_client_ca", hint="a PEM file") from error
    return content


def _configuration(loaded: _Loaded) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.cert)], root_certificates=loaded.client_ca)
