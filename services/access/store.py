"""The access store: authentication by the current version of the access file.

Without an access file, one token authenticates all callers. A client certificate is matched by its subject; TLS has
already verified its signature.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from services.access.access_file import read_access
from services.access.tables import AccessFile, CertificateTable, JwtTable
from services.access.tokens import KeySet, StaticTokens, WebTokens, looks_like_one, place_of
from services.auth import Admission, Authenticator, OneToken, Presented, bearer, on_behalf, shows, unknown
from swe_ai_fleet.domain.access import AccessRole, Principal, TenantRules
from swe_ai_fleet.domain.errors import InvalidRequest, PermissionDenied
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.settings import Settings

_MAX_BYTES = 64 * 1024
_Subject = tuple[str, str]
LOOK_SECONDS = 1.0
"""The interval between checks of the file for rules; a call checks it each time."""
AT_ONCE_BYTES = 128 * 1024
"""Files up to this size are read in the event loop, which takes some milliseconds."""
LOCAL = "local"
"""The name of the person who starts a fleet, on their own machine."""
_Stamp = tuple[int, int, int]
_log = structlog.get_logger(__name__)


class CertificateHolders:
    """Finds the principal of a certificate.

    Names in subjectAltName take precedence over the common name, which RFC 6125 deprecates.
    """

    def __init__(self, entries: Iterable[CertificateTable]) -> None:
        self._holders: dict[_Subject, Principal] = {}
        for entry in entries:
            principal = Principal(tenant=entry.tenant, name=entry.name, roles=entry.roles)
            subject = next(
                (kind, value)
                for kind, value in (("uri", entry.san_uri), ("dns", entry.san_dns), ("cn", entry.common_name))
                if value
            )
            self._holders[subject] = principal

    def __len__(self) -> int:
        return len(self._holders)

    def find(self, pem: bytes, now: float) -> Admission | None:
        """The certificate's principal; None if unknown or expired (a connection may outlive its certificate)."""
        subjects, expires = _subjects(pem)
        if expires <= now:
            return None
        holder = next((self._holders[subject] for subject in subjects if subject in self._holders), None)
        return None if holder is None else Admission(principal=holder, expires=expires)


def _subjects(pem: bytes) -> tuple[list[_Subject], float]:
    """The subjects of a certificate, the strongest names first, and its expiry."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if not pem or len(pem) > _MAX_BYTES:
        return [], 0.0
    try:
        read = x509.load_pem_x509_certificate(pem)
        subjects: list[_Subject] = []
        with suppress(x509.ExtensionNotFound):
            names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            subjects += [("uri", uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
            subjects += [("dns", name) for name in names.get_values_for_type(x509.DNSName)]
        subjects += [("cn", str(name.value)) for name in read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return subjects, read.not_valid_after_utc.timestamp()
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return [], 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edition:
    stamp: _Stamp
    rules: Mapping[str, TenantRules]
    tokens: StaticTokens
    web_tokens: WebTokens
    certificates: CertificateHolders


class AccessStore:
    """An Authenticator by the access file, which is read again when it changes.

    A broken new version is logged and ignored: the previous version stays in force.

    Args:
        local: This machine's own token, with the roles admin and service in the default tenant; None: there is none.
        clock: Seconds since 1970.
    """

    def __init__(self, path: Path, *, local: str | None = None, clock: Callable[[], float] = time.time) -> None:
        if local == "":
            raise ValueError("the token must not be empty")
        self._path = path
        self._local = local
        self._clock = clock
        self._key_sets: dict[tuple[str, Path | None], KeySet] = {}
        self._edition: _Edition
        self._refused: _Stamp | None = None
        self._fault = ""
        self._past: dict[str, TenantRules] = {}
        self._reading = asyncio.Lock()
        self._looked_at = float("-inf")
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, *, local: str | None = None, clock: Callable[[], float] = time.time) -> AccessStore:
        """An access store that has read its file once. Raises InvalidRequest."""
        store = cls(path, local=local, clock=clock)
        stamp = _stamp_of(path)
        store._edition = store._edition_of(stamp, await asyncio.to_thread(read_access, path))
        store._looked_at = time.monotonic()
        return store

    @property
    def fault(self) -> str:
        """The error in the current file; empty if the file is in force."""
        return self._fault

    @property
    def takes_certificates(self) -> bool:
        return len(self._edition.certificates) > 0

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants of the file, at most a second old."""
        self._look()
        return tuple(self._edition.rules)

    def rules(self, tenant: str) -> TenantRules:
        """The rules of a tenant, at most a second old.

        A tenant that was removed from the file has no callers; its last rules apply to its running work. The file is
        checked here too, since work may run or arrive without calls.
        """
        self._look()
        return self._edition.rules.get(tenant) or self._past.get(tenant) or TenantRules(tenant=tenant)

    async def authenticate(self, presented: Presented) -> Admission:
        """The caller, by the current file. Raises Unauthenticated, PermissionDenied, InvalidRequest, Unavailable."""
        await self._follow()
        admission = await self._admission(presented)
        principal = on_behalf(admission.principal, presented)
        # For this machine's own token and services, the default tenant exists even if the file does not name it.
        unnamed = principal.tenant == DEFAULT_TENANT and principal.may(AccessRole.SERVICE)
        if principal.tenant not in self._edition.rules and not unnamed:
            raise PermissionDenied(
                f"there is no tenant {principal.tenant[:63]!r}", field="tenant", hint="see the access file"
            )
        return Admission(principal=principal, expires=admission.expires)

    async def _admission(self, presented: Presented) -> Admission:
        now, edition = self._clock(), self._edition
        if presented.authorization:
            token = bearer(presented.authorization)
            if token is None:
                raise unknown()
            if self._local is not None and shows(presented.authorization, self._local):
                roles = frozenset((AccessRole.ADMIN, AccessRole.SERVICE))
                return Admission(principal=Principal(tenant=DEFAULT_TENANT, name=LOCAL, roles=roles))
            if looks_like_one(token):
                return await edition.web_tokens.find(token)
            admission = edition.tokens.find(token, now)
        else:
            admission = edition.certificates.find(presented.certificate, now)
        if admission is None:
            raise unknown()
        return admission

    async def _follow(self) -> None:
        """Read the file again if it has changed since the last check."""
        # A stat takes microseconds; a thread for it would take longer.
        if _stamp_of(self._path) in (self._edition.stamp, self._refused):
            return
        async with self._reading:
            # Before reading, so that a write meanwhile is noticed at the next check.
            stamp = _stamp_of(self._path)
            if stamp not in (self._edition.stamp, self._refused):
                with self._logging_refusal(stamp):
                    self._take(stamp, await asyncio.to_thread(read_access, self._path))

    def _look(self) -> None:
        """Like `_follow`, for synchronous callers: a small file is read at once, a large one in the background."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        stamp = _stamp_of(self._path)
        if stamp in (self._edition.stamp, self._refused):
            return
        if stamp[1] > AT_ONCE_BYTES:
            self._following = asyncio.create_task(self._follow(), name="access file")
            return
        with self._logging_refusal(stamp):
            self._take(stamp, read_access(self._path))

    @contextmanager
    def _logging_refusal(self, stamp: _Stamp) -> Generator[None]:
        try:
            yield
        except InvalidRequest as error:
            self._refused, self._fault = stamp, str(error)
            _log.error(
                "the access file is invalid; the previous version stays in force",
                path=str(self._path),
                field=error.field,
                error=str(error),
            )
        else:
            tenants = len(self._edition.rules)
            _log.info("the access file was reloaded", path=str(self._path), tenants=tenants)

    def _take(self, stamp: _Stamp, read: AccessFile) -> None:
        edition = self._edition_of(stamp, read)
        self._past.update(self._edition.rules)
        self._edition, self._refused, self._fault = edition, None, ""

    def _edition_of(self, stamp: _Stamp, read: AccessFile) -> _Edition:
        return _Edition(
            stamp=stamp,
            rules=read.rules(),
            tokens=StaticTokens(read.tokens),
            web_tokens=WebTokens(self._issuers(read), clock=self._clock),
            certificates=CertificateHolders(read.certificates),
        )

    def _issuers(self, read: AccessFile) -> list[tuple[JwtTable, KeySet]]:
        """Each issuer with its keys; existing key sets are kept."""
        places = [(table, place_of(self._path.parent, table.jwks, table.ca)) for table in read.jwt]
        key_sets = {place: self._key_sets.get(place) or KeySet(place[0], ca=place[1]) for _, place in places}
        self._key_sets = key_sets
        return [(table, key_sets[place]) for table, place in places]


def _stamp_of(path: Path) -> _Stamp:
    """A stamp that changes when a file is written or replaced; zeros for a missing file."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino


async def open_access(settings: Settings, token: str) -> AccessStore | OneToken:
    """The store of the access file, or one token for all callers if no file is configured.

    Args:
        settings: The path of the file, and the address at which the server listens.
        token: This machine's own token: for all callers, or with a file for the person who starts the fleet.

    Raises:
        InvalidRequest: The file cannot be read or is invalid.
    """
    if settings.tls_cert is None and not settings.loopback:
        _log.warning(
            "tokens and data are sent unencrypted over the network",
            listen=settings.listen,
            hint="set FLEET_TLS_CERT and FLEET_TLS_KEY, or let a proxy or a mesh speak TLS",
        )
    if settings.access_file is None:
        if not settings.loopback:
            _log.warning(
                "anyone with the one token can do everything, also from other machines",
                listen=settings.listen,
                hint="set FLEET_ACCESS_FILE, see docs/access.md",
            )
        return OneToken(token)
    return await AccessStore.open(settings.access_file, local=token)


def knows(access: AccessStore | OneToken, tenant: str) -> bool:
    """Whether a tenant exists: the default one, and those of the access file."""
    return tenant == DEFAULT_TENANT or (isinstance(access, AccessStore) and tenant in access.tenants)


def rules_of(access: Authenticator) -> Rules | None:
    """The rules of each tenant, by the current access file; None without a file."""
    return access.rules if isinstance(access, AccessStore) else None
