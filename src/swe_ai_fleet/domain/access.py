"""Tenants and their callers: roles, principals, quotas, the rules that hold for a tenant, and what is stored for it.

Sizes are in bytes, `StoredPiece.at` is in seconds since 1970; a quota of 0 means as much as the fleet has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.task import DEFAULT_TENANT, ApprovalPolicy

_STRICTER = (ApprovalPolicy.NONE, ApprovalPolicy.PLAN, ApprovalPolicy.RISKY, ApprovalPolicy.EVERY)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPiece:
    """Something stored for a tenant: `bytes` since `at` (seconds since 1970), reported at position `sequence`.

    A piece with a `place` replaces the one before it there (0 bytes: the place is empty again); without one it stays
    until it is too old.
    """

    sequence: int
    tenant: str
    bytes: int
    at: float
    place: str = ""


class AccessRole(StrEnum):
    """What a caller may do inside a tenant. Every role includes reading.

    SERVICE is for processes of the fleet itself, which call on behalf of others and name the tenant.
    """

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    APPROVER = "approver"
    ADMIN = "admin"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated caller.

    Attributes:
        tenant: The only tenant whose executions, memories and workspaces they reach.
        name: Their name by token or certificate; empty where everybody shares one token.
        roles: What they may do.
        sole: Whether everybody shares one token, so that submitters and approvers cannot be told apart.
    """

    tenant: str
    name: str = ""
    roles: frozenset[AccessRole] = frozenset()
    sole: bool = False

    def may(self, role: AccessRole) -> bool:
        """Whether they have the rights of a role: an admin has those of all people, everybody with a role may read."""
        if role is AccessRole.SERVICE:
            return role in self.roles
        return role in self.roles or AccessRole.ADMIN in self.roles or (role is AccessRole.VIEWER and bool(self.roles))


SOLE = Principal(tenant=DEFAULT_TENANT, roles=frozenset(AccessRole), sole=True)
"""The caller with the only token of a fleet without a file of tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one tenant may use at once and in a day; 0: as much as the fleet has.

    Attributes:
        agents: Agents that run at the same time.
        tokens_per_day: Prompt and completion tokens from midnight UTC on.
        queued: Executions that wait.
        queue_share: Share of the fleet's agents while others wait too, 0 to 1; 0: as much as every other tenant.
        storage_bytes: What is stored for it in NATS: events, blobs with uploads and checkpoints, results. The same
            limit holds once more for the data of the context service.
    """

    agents: int = 0
    tokens_per_day: int = 0
    queued: int = 0
    queue_share: float = 0.0
    storage_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """Rules of a tenant, which requests cannot relax.

    Attributes:
        tenant: Its name: 1 to 63 of a-z, 0-9 and '-', beginning with a letter.
        quota: What it may use.
        approval: The least approval policy of its tasks; a caller may ask for a stricter one.
        require_verified: Whether only verified candidates may win; a caller may require that, too.
        default_repository: The path or URL for tasks without a repository; empty: they are refused.
        model_patience_seconds: How long its runs wait while no model server is available; None: the installation's
            default.
        agent_endpoints: Where its admins may register external agents: host:port patterns, within the fleet's.
        harnesses: Those of the installation that its tasks may use; None: all.
        retention_days: How long executions and their results are kept after the end; 0: as long as the log keeps
            events.
    """

    tenant: str
    quota: Quota = field(default_factory=Quota)
    approval: ApprovalPolicy = ApprovalPolicy.NONE
    require_verified: bool = False
    default_repository: str = ""
    model_patience_seconds: float | None = None
    agent_endpoints: tuple[str, ...] = ()
    harnesses: tuple[str, ...] | None = None
    retention_days: int = 0

    def approval_for(self, asked: ApprovalPolicy) -> ApprovalPolicy:
        """The policy of a task whose caller asked for this one: the stricter of the two."""
        return max(asked, self.approval, key=_STRICTER.index)
