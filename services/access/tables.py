"""The tables of the access file: which keys each has, and what may stand there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    field_validator,
    model_validator,
)

from services.auth import is_name
from swe_ai_fleet.domain.access import AccessRole, Quota, TenantRules
from swe_ai_fleet.domain.council import EndpointRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import ApprovalPolicy

TenantName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}\z")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}\z")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Those with a private and a public key: with a shared one, whoever can check a token can make it."""
ClaimPath = str | Annotated[tuple[Text, ...], Field(min_length=1, max_length=8)]
"""`realm_access.roles`, or as a list where a claim's own name has dots in it."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QuotaTable(_Table):
    """`[tenants.NAME.quota]`; 0: as much as the fleet has."""

    agents: StrictInt = Field(default=0, ge=0)
    tokens_per_day: StrictInt = Field(default=0, ge=0)
    queued: StrictInt = Field(default=0, ge=0)
    storage_bytes: StrictInt = Field(default=0, ge=0)
    queue_share: StrictFloat | StrictInt = Field(default=0.0, ge=0, le=1)


class TenantTable(_Table):
    """`[tenants.NAME]`."""

    quota: QuotaTable = QuotaTable()
    approval: Literal["none", "plan", "risky", "every"] = "none"
    require_verified: StrictBool = False
    agent_endpoints: tuple[Text, ...] = ()

    @field_validator("agent_endpoints")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        try:
            EndpointRules(patterns=patterns)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return patterns


class _Grant(_Table):
    """What everybody gets whom an entry lets in."""

    roles: frozenset[AccessRole]

    @field_validator("roles", mode="before")
    @classmethod
    def _known(cls, roles: object) -> object:
        return _read_roles(roles)


class TokenTable(_Grant):
    """`[[tokens]]`: of a token only the SHA-256 is kept."""

    name: Text
    tenant: TenantName
    sha256: Digest
    expires: Annotated[datetime, Strict()] | Annotated[date, Strict()] | None = None

    @field_validator("name")
    @classmethod
    def _a_name(cls, name: str) -> str:
        return _checked_name(name)

    @field_validator("roles")
    @classmethod
    def _some(cls, roles: frozenset[AccessRole]) -> frozenset[AccessRole]:
        return _checked_some(roles)

    @field_validator("expires")
    @classmethod
    def _with_zone(cls, expires: datetime | date | None) -> datetime | date | None:
        if isinstance(expires, datetime) and expires.tzinfo is None:
            raise ValueError("a time without a zone; write it such as 2027-01-31T12:00:00Z")
        return expires


class JwtTable(_Grant):
    """`[[jwt]]`: an issuer whose tokens are taken."""

    issuer: Text
    audience: Text
    jwks: Text
    ca: str = ""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)]
    leeway_seconds: StrictInt = Field(default=30, ge=0, le=300)
    tenant: TenantName | None = None
    tenant_claim: ClaimPath = ""
    tenants: dict[str, TenantName] = Field(default_factory=dict[str, str])
    roles: frozenset[AccessRole] = frozenset()
    roles_claim: ClaimPath = ""
    role_names: dict[str, frozenset[AccessRole]] = Field(default_factory=dict[str, frozenset[AccessRole]])
    name_claim: ClaimPath = "sub"
    name_prefix: str = Field(default="", max_length=32)

    @field_validator("role_names", mode="before")
    @classmethod
    def _known_roles(cls, names: object) -> object:
        if isinstance(names, dict):
            return {name: _read_roles(roles) for name, roles in cast("dict[str, object]", names).items()}
        return names

    @field_validator("jwks")
    @classmethod
    def _a_place(cls, place: str) -> str:
        if "://" in place and not place.startswith("https://"):
            raise ValueError("a URL must be https: whoever can change the keys on their way makes tokens")
        return place

    @field_validator("name_claim")
    @classmethod
    def _named(cls, path: ClaimPath) -> ClaimPath:
        if not path:
            raise ValueError("empty; callers need a name")
        return path

    @model_validator(mode="after")
    def _complete(self) -> JwtTable:
        if bool(self.tenant) == bool(self.tenant_claim):
            raise ValueError("needs one of tenant and tenant_claim")
        if not self.roles and not self.roles_claim:
            raise ValueError("needs roles, roles_claim or both")
        if self.tenants and not self.tenant_claim:
            raise ValueError("tenants translates what tenant_claim says, which is not given")
        if self.role_names and not self.roles_claim:
            raise ValueError("role_names translates what roles_claim says, which is not given")
        return self


class CertificateTable(_Grant):
    """`[[certificates]]`: whose certificate (signed by `tls_client_ca`) says so, is let in over gRPC."""

    name: Text
    tenant: TenantName
    common_name: str = Field(default="", max_length=1_000)
    san_uri: str = Field(default="", max_length=1_000)
    san_dns: str = Field(default="", max_length=1_000)

    @field_validator("name")
    @classmethod
    def _a_name(cls, name: str) -> str:
        return _checked_name(name)

    @field_validator("roles")
    @classmethod
    def _some(cls, roles: frozenset[AccessRole]) -> frozenset[AccessRole]:
        return _checked_some(roles)

    @model_validator(mode="after")
    def _one_subject(self) -> CertificateTable:
        if sum(map(bool, (self.common_name, self.san_uri, self.san_dns))) != 1:
            raise ValueError("needs exactly one of san_uri, san_dns and common_name")
        return self


class AccessFile(_Table):
    """The whole file."""

    tenants: dict[TenantName, TenantTable] = Field(min_length=1)
    tokens: tuple[TokenTable, ...] = ()
    jwt: tuple[JwtTable, ...] = ()
    certificates: tuple[CertificateTable, ...] = ()

    def rules(self) -> Mapping[str, TenantRules]:
        """What holds for each tenant."""
        return {
            name: TenantRules(
                tenant=name,
                quota=Quota(**table.quota.model_dump()),
                approval=ApprovalPolicy(table.approval),
                require_verified=table.require_verified,
                agent_endpoints=table.agent_endpoints,
            )
            for name, table in self.tenants.items()
        }


def _read_roles(roles: object) -> object:
    if not isinstance(roles, list):
        return roles
    found: list[AccessRole] = []
    for role in cast("list[object]", roles):
        try:
            found.append(AccessRole(cast("str", role)))
        except ValueError:
            raise ValueError(
                f"{str(role)[:40]!r} is no role; there are {', '.join(one.value for one in AccessRole)}"
            ) from None
    return frozenset(found)


def _checked_name(name: str) -> str:
    if not is_name(name):
        raise ValueError("a name has 1 to 64 letters, digits and ._@:-")
    return name


def _checked_some(roles: frozenset[AccessRole]) -> frozenset[AccessRole]:
    if not roles:
        raise ValueError("empty; whoever has no role may do nothing")
    return roles
