"""JSON Web Tokens (RFC 7519, with the advice of RFC 8725) of the issuers that the access file names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from services.access.key_set import Jwk, KeySet
from services.access.tables import ClaimPath, JwtTable
from services.auth import Admission, is_name, unknown
from swe_ai_fleet.domain.access import AccessRole, Principal

MAX_CHARS = 8 * 1024
_LEAST_RSA_BITS = 2048
_PEOPLES = frozenset(AccessRole) - {AccessRole.SERVICE}
"""Roles that a claim may name by itself; that of services the file must give."""


def looks_like_one(token: str) -> bool:
    """Whether a token can be a JWT, which has two dots; static tokens have none."""
    return token.count(".") == 2


class WebTokens:
    """Finds whom a token names, if one of the issuers signed it.

    Args:
        issuers: Of the access file, each with its keys.
        clock: Seconds since 1970.
    """

    def __init__(self, issuers: Iterable[tuple[JwtTable, KeySet]], *, clock: Callable[[], float] = time.time) -> None:
        self._issuers = tuple(issuers)
        self._clock = clock

    async def find(self, token: str) -> Admission:
        """Whom it names. Raises Unauthenticated, Unavailable."""
        import jwt

        if len(token) > MAX_CHARS:
            raise unknown()
        try:
            header = jwt.get_unverified_header(token)
            named: object = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise unknown() from None
        for table, keys in self._issuers:
            if table.issuer == named and (found := await self._of(table, keys, token, header)):
                return found
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
            claims = jwt.decode(
                token,
                _key(jwk, str(algorithm)),
                algorithms=list(table.algorithms),
                audience=table.audience,
                issuer=table.issuer,
                leeway=table.leeway_seconds,
                options={
                    "require": ["exp", "iat", "iss", "aud"],
                    # PyJWT reads the system's clock; times are judged below, by ours.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        return self._admission(table, claims)

    def _admission(self, table: JwtTable, claims: Mapping[str, Any]) -> Admission | None:
        now = self._clock()
        expires, issued, begins = (_seconds(claims.get(name)) for name in ("exp", "iat", "nbf"))
        if expires is None or issued is None or (begins is None and "nbf" in claims):
            return None
        if not expires + table.leeway_seconds > now >= max(issued, begins or 0.0) - table.leeway_seconds:
            return None
        name, tenant = claim(claims, table.name_claim), _tenant(table, claims)
        if not isinstance(name, str) or not is_name(table.name_prefix + name) or tenant is None:
            return None
        principal = Principal(tenant=tenant, name=table.name_prefix + name, roles=_roles(table, claims))
        return Admission(principal=principal, expires=expires + table.leeway_seconds)


def claim(claims: Mapping[str, Any], path: ClaimPath) -> object:
    """The value of a claim; None where there is none. Dots of a text lead into objects."""
    value: object = claims
    for part in path.split(".") if isinstance(path, str) else path:
        if not isinstance(value, Mapping):
            return None
        value = cast("Mapping[str, object]", value).get(part)
    return value


def _tenant(table: JwtTable, claims: Mapping[str, Any]) -> str | None:
    if table.tenant is not None:
        return table.tenant
    told = claim(claims, table.tenant_claim)
    if not isinstance(told, str):
        return None
    # With a translation only what it names is taken: somebody else's tenant may be called as ours are.
    return table.tenants.get(told) if table.tenants else told


def _roles(table: JwtTable, claims: Mapping[str, Any]) -> frozenset[AccessRole]:
    told = claim(claims, table.roles_claim) if table.roles_claim else None
    named = told.split() if isinstance(told, str) else told
    found = set(table.roles)
    for one in cast("list[object]", named) if isinstance(named, list) else ():
        if not isinstance(one, str):
            continue
        if one in table.role_names:
            found |= table.role_names[one]
        elif not table.role_names and one in _PEOPLES:
            found.add(AccessRole(one))
    return frozenset(found)


def _seconds(value: object) -> float | None:
    """A NumericDate; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return float(value)


def _key(jwk: Jwk, algorithm: str) -> Any:
    """The key, for this algorithm only. Raises jwt.PyJWTError."""
    import jwt

    made = jwt.PyJWK(dict(jwk), algorithm)
    if getattr(made.key, "key_size", _LEAST_RSA_BITS) < _LEAST_RSA_BITS and jwk["kty"] == "RSA":
        raise jwt.InvalidKeyError("the RSA key is too short")
    return made
