"""Tokens of callers: static ones and JSON Web Tokens.

A static token is made once, shown to its owner once, and stored as a digest. A JSON Web Token (RFC 7519, with the
advice of RFC 8725) is valid if one of the issuers in the access file has signed it; an issuer's public keys (RFC 7517)
come from a file or an https URL and are refreshed.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from pathlib import Path
from typing import Any

import structlog

from services.access.tables import ClaimPath, JwtTable, TokenTable
from services.auth import Admission, is_name, unknown
from swe_ai_fleet.domain.access import AccessRole, Principal
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.json_values import is_list, items, mapping, mappings, parse_json, parsed, string

PREFIX = "fleet_"
"""The prefix by which secret scanners recognise a token."""
_ENTROPY_BYTES = 32
_log = structlog.get_logger(__name__)


def new_token() -> str:
    """A random token. Its entropy makes one round of SHA-256 enough for its digest."""
    return PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)


def token_digest(token: str) -> str:
    """The digest of a token in the access file."""
    return hashlib.sha256(token.encode()).hexdigest()


def end_of(expires: datetime | date | None) -> float:
    """When a token expires, in seconds since 1970; 0 = never. A date without a time is the end of that day in UTC."""
    if expires is None:
        return 0.0
    if not isinstance(expires, datetime):
        expires = datetime.combine(expires, time_of_day.max, UTC)
    return expires.timestamp()


class StaticTokens:
    """Finds the holder of a token.

    The look-up is by digest: a caller cannot choose its bits, so the time it takes reveals nothing.
    """

    def __init__(self, entries: Iterable[TokenTable]) -> None:
        self._holders = {
            digest: Admission(
                principal=Principal(tenant=entry.tenant, name=entry.name, roles=entry.roles), expires=end_of(expires)
            )
            for entry in entries
            for digest, expires in zip(entry.digests, (entry.expires, entry.previous_expires), strict=False)
        }

    def find(self, token: str, now: float) -> Admission | None:
        """The token's holder; None if it is unknown or expired."""
        admission = self._holders.get(token_digest(token))
        return None if admission is None or 0 < admission.expires <= now else admission


FRESH_SECONDS = 600.0
"""The interval of key refreshes: a revoked key is accepted no longer than that."""
LEAST_SECONDS = 30.0
"""The least interval between requests, however many tokens name unknown keys."""
TIMEOUT_SECONDS = 5.0
MAX_BYTES = 256 * 1024
MAX_KEYS = 100

Jwk = Mapping[str, Any]


class KeySet:
    """Keys by their id.

    While the keys cannot be fetched, the last ones stay valid.

    Args:
        place: A path, or an https URL.
        ca: PEM file of the authority that signed the URL's certificate; None: one that the system trusts.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, place: str, *, ca: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._ca = ca
        self._clock = clock
        self._keys: tuple[Jwk, ...] = ()
        self._tried_at: float | None = None
        self._read_at: float | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._reading = asyncio.Lock()

    async def find(self, key_id: str | None) -> Jwk | None:
        """The key of that id, or without an id the only key; None if there is no such key.

        Raises:
            Unavailable: No keys have been fetched yet.
        """
        if self._stale():
            await self._refresh(unless=lambda: not self._stale())
        key = self._find(key_id)
        if key is None:
            await self._refresh(unless=lambda: self._find(key_id) is not None)
            key = self._find(key_id)
        if key is None and self._read_at is None:
            raise Unavailable("the keys of the token's issuer cannot be fetched", hint="see the server's log")
        return key

    def _find(self, key_id: str | None) -> Jwk | None:
        fitting = [key for key in self._keys if key_id is None or key.get("kid") == key_id]
        return fitting[0] if len(fitting) == 1 else None

    def _stale(self) -> bool:
        return self._read_at is None or self._clock() - self._read_at > FRESH_SECONDS

    async def _refresh(self, *, unless: Callable[[], bool]) -> None:
        async with self._reading:
            # A caller that has waited here uses the keys of the refresh before it.
            tried = self._tried_at
            if unless() or (tried is not None and self._clock() - tried < LEAST_SECONDS):
                return
            self._tried_at = self._clock()
            try:
                data = await self._fetched() if "://" in self._place else await asyncio.to_thread(_read, self._place)
                self._keys = parse_keys(data)
                self._read_at = self._clock()
            except (OSError, ValueError) as error:
                _log.error(
                    "the keys of an issuer cannot be fetched; the known keys stay valid",
                    place=self._place,
                    known=len(self._keys),
                    error=str(error) or type(error).__name__,
                )

    async def _fetched(self) -> bytes:
        import httpx2

        ca = str(self._ca) if self._ca else None
        trusted = await asyncio.to_thread(ssl.create_default_context, cafile=ca)
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                httpx2.AsyncClient(verify=trusted, trust_env=False, follow_redirects=False) as client,
                client.stream("GET", self._place, headers={"accept": "application/json"}) as answer,
            ):
                if answer.status_code != 200:
                    raise ValueError(f"the answer is {answer.status_code}")
                data = bytearray()
                async for piece in answer.aiter_bytes():
                    data += piece
                    if len(data) > MAX_BYTES:
                        break
                return bytes(data)
        except httpx2.HTTPError as error:
            raise OSError(str(error) or type(error).__name__) from error


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)


def place_of(folder: Path, jwks: str, ca: str) -> tuple[str, Path | None]:
    """The place of keys and the CA file for it, relative to the folder of the access file."""
    return (jwks if "://" in jwks else str(folder / jwks)), (folder / ca if ca else None)


def parse_keys(data: bytes) -> tuple[Jwk, ...]:
    """The public signature keys of a set. Raises ValueError."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    keys = mapping(parse_json(data)).get("keys")
    if not is_list(keys):
        raise ValueError("not a JSON object with a list of keys")
    # Without shared keys ("oct"), with which anyone who can verify can also sign.
    public = tuple(
        key
        for key in mappings(keys[:MAX_KEYS])
        if key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"
    )
    if not public:
        raise ValueError("it has no public key for signatures")
    return public


MAX_CHARS = 8 * 1024
_LEAST_RSA_BITS = 2048
_PEOPLES = frozenset(AccessRole) - {AccessRole.SERVICE}
"""Roles that a claim may grant; the role of services must be granted in the access file."""


def looks_like_one(token: str) -> bool:
    """Whether a token can be a JWT, which has two dots; static tokens have none."""
    return token.count(".") == 2


class WebTokens:
    """Finds the principal of a token, if one of the issuers signed it.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, issuers: Iterable[tuple[JwtTable, KeySet]], *, clock: Callable[[], float] = time.time) -> None:
        self._issuers = tuple(issuers)
        self._clock = clock

    async def find(self, token: str) -> Admission:
        """The token's principal. Raises Unauthenticated, Unavailable."""
        import jwt

        if len(token) > MAX_CHARS:
            raise unknown()
        try:
            header = parsed(jwt.get_unverified_header, token)
            named: object = parsed(jwt.decode, token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, ValueError):
            raise unknown() from None
        for table, keys in self._issuers:
            if table.issuer == named and (admission := await self._of(table, keys, token, header)):
                return admission
        raise unknown()

    async def _of(self, table: JwtTable, keys: KeySet, token: str, header: Mapping[str, Any]) -> Admission | None:
        import jwt

        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in table.algorithms or not (key_id is None or isinstance(key_id, str)):
            return None
        jwk = await keys.find(key_id)
        if jwk is None or jwk.get("alg", algorithm) != algorithm:
            return None
        try:
            claims = parsed(
                jwt.decode,
                token,
                _key(jwk, str(algorithm)),
                algorithms=list(table.algorithms),
                audience=table.audience,
                issuer=table.issuer,
                leeway=table.leeway_seconds,
                options={
                    "require": ["exp", "iat", "iss", "aud"],
                    # PyJWT reads the system clock; times are checked below, by our clock.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError):
            return None
        return self._admission(table, claims)

    def _admission(self, table: JwtTable, claims: Mapping[str, Any]) -> Admission | None:
        now = self._clock()
        expires, issued, begins = (_seconds(claims.get(name)) for name in ("exp", "iat", "nbf"))
        if expires is None or issued is None or (begins is None and "nbf" in claims):
            return None
        if not expires + table.leeway_seconds > now >= max(issued, begins or 0.0) - table.leeway_seconds:
            return None
        name, tenant = claim(claims, table.name_claim), table.tenant
        if tenant is None:
            named = string(claim(claims, table.tenant_claim))
            # With a mapping only its names are accepted: a foreign tenant may have the same name as one of ours.
            tenant = table.tenants.get(named) if table.tenants else named or None
        if not isinstance(name, str) or not is_name(table.name_prefix + name) or tenant is None:
            return None
        principal = Principal(tenant=tenant, name=table.name_prefix + name, roles=_roles(table, claims))
        return Admission(principal=principal, expires=expires + table.leeway_seconds)


def claim(claims: Mapping[str, Any], path: ClaimPath) -> object:
    """The value of a claim; None if it is missing. Dots in a text path separate nested objects."""
    *way, last = path.split(".") if isinstance(path, str) else path
    return mapping(claims, *way).get(last)


def _roles(table: JwtTable, claims: Mapping[str, Any]) -> frozenset[AccessRole]:
    value = claim(claims, table.roles_claim) if table.roles_claim else None
    named = value.split() if isinstance(value, str) else value
    roles = set(table.roles)
    for name in map(string, items(named)):
        if name in table.role_names:
            roles |= table.role_names[name]
        elif not table.role_names and name in _PEOPLES:
            roles.add(AccessRole(name))
    return frozenset(roles)


def _seconds(value: object) -> float | None:
    """A NumericDate; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def _key(jwk: Jwk, algorithm: str) -> Any:
    """The key, usable with this algorithm only. Raises jwt.PyJWTError."""
    import jwt

    jwk_key = jwt.PyJWK(dict(jwk), algorithm)
    if getattr(jwk_key.key, "key_size", _LEAST_RSA_BITS) < _LEAST_RSA_BITS and jwk["kty"] == "RSA":
        raise jwt.InvalidKeyError("the RSA key is too short")
    return jwk_key
