"""The tables of the access file: their keys and valid values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
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
from swe_ai_fleet.domain.json_values import is_list
from swe_ai_fleet.domain.task import ApprovalPolicy

T = TypeVar("T")


def _read_roles(roles: object) -> object:
    if not is_list(roles):
        return roles
    by_name = {role.value: role for role in AccessRole}
    read_roles: set[AccessRole] = set()
    for role in roles:
        if not isinstance(role, str) or role not in by_name:
            raise ValueError(f"{str(role)[:40]!r} is not a role; known: {', '.join(by_name)}")
        read_roles.add(by_name[role])
    return frozenset(read_roles)


def _must(holds: Callable[[T], bool], otherwise: str) -> AfterValidator:
    """A validator; its error message is `otherwise`."""

    def check(value: T) -> T:
        if not holds(value):
            raise ValueError(otherwise)
        return value

    return AfterValidator(check)


def _is_safe(location: str) -> bool:
    return "://" not in location or location.startswith("https://")


TenantName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}\z")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}\z")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The algorithms with a private and a public key: with a shared key, anyone who can verify a token can forge one."""
Roles = Annotated[frozenset[AccessRole], BeforeValidator(_read_roles)]
SomeRoles = Annotated[Roles, _must(bool, "empty; without a role nothing is allowed")]
Name = Annotated[Text, _must(is_name, "a name has 1 to 64 letters, digits and ._@:-")]
Place = Annotated[
    Text,
    _must(
        _is_safe,
        "must be an https URL: over plain HTTP an attacker could replace the keys and forge tokens",
    ),
]
Expiry = Annotated[
    Annotated[datetime, Strict()] | Annotated[date, Strict()] | None,
    _must(
        lambda expires: not isinstance(expires, datetime) or expires.tzinfo is not None,
        "has no time zone; for example 2027-01-31T12:00:00Z",
    ),
]
ClaimPath = str | Annotated[tuple[Text, ...], Field(min_length=1, max_length=8)]
"""A path such as `realm_access.roles`, or a list if the name of a claim contains dots."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QuotaTable(_Table):
    """`[tenants.NAME.quota]`; 0: no limit but the fleet's."""

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
    default_repository: str = ""
    model_patience_seconds: StrictInt | StrictFloat | None = Field(default=None, ge=0)
    agent_endpoints: tuple[Text, ...] = ()
    harnesses: tuple[Text, ...] | None = None
    retention_days: StrictInt = Field(default=0, ge=0, le=36_500)

    @field_validator("agent_endpoints")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        try:
            EndpointRules(patterns=patterns)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return patterns


class TokenTable(_Table):
    """`[[tokens]]`: the SHA-256 of a token, and for a while that of the token before it."""

    name: Name
    tenant: TenantName
    sha256: Digest
    expires: Expiry = None
    previous_sha256: Digest | None = None
    previous_expires: Expiry = None
    roles: SomeRoles

    @model_validator(mode="after")
    def _previous_ends(self) -> TokenTable:
        if (self.previous_sha256 is None) != (self.previous_expires is None):
            raise ValueError("previous_sha256 and previous_expires belong together")
        return self

    @property
    def digests(self) -> tuple[str, ...]:
        return (self.sha256,) if self.previous_sha256 is None else (self.sha256, self.previous_sha256)


class JwtTable(_Table):
    """`[[jwt]]`: an issuer whose tokens are accepted."""

    issuer: Text
    audience: Text
    jwks: Place
    ca: str = ""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)]
    leeway_seconds: StrictInt = Field(default=30, ge=0, le=300)
    tenant: TenantName | None = None
    tenant_claim: ClaimPath = ""
    tenants: dict[str, TenantName] = Field(default_factory=dict[str, str])
    roles: Roles = frozenset()
    roles_claim: ClaimPath = ""
    role_names: dict[str, Roles] = Field(default_factory=dict[str, frozenset[AccessRole]])
    name_claim: Annotated[ClaimPath, _must(bool, "empty; callers need a name")] = "sub"
    name_prefix: str = Field(default="", max_length=32)

    @model_validator(mode="after")
    def _complete(self) -> JwtTable:
        if bool(self.tenant) == bool(self.tenant_claim):
            raise ValueError("needs one of tenant and tenant_claim")
        if not self.roles and not self.roles_claim:
            raise ValueError("needs roles, roles_claim or both")
        if self.tenants and not self.tenant_claim:
            raise ValueError("tenants needs tenant_claim")
        if self.role_names and not self.roles_claim:
            raise ValueError("role_names needs roles_claim")
        return self


class CertificateTable(_Table):
    """`[[certificates]]`: a gRPC caller, recognised by the subject of its certificate (signed by `tls_client_ca`)."""

    name: Name
    tenant: TenantName
    roles: SomeRoles
    common_name: str = Field(default="", max_length=1_000)
    san_uri: str = Field(default="", max_length=1_000)
    san_dns: str = Field(default="", max_length=1_000)

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
        rules: dict[str, TenantRules] = {}
        for name, table in self.tenants.items():
            values: dict[str, Any] = {"quota": Quota(**dict(table.quota)), "approval": ApprovalPolicy(table.approval)}
            rules[name] = TenantRules(tenant=name, **(dict(table) | values))
        return rules
