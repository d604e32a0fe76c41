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
    """Something that was stored for a tenant: `bytes` since `at` (seconds since 1970), told at position `sequence`.

    A `place` is one whose content is replaced by the next piece there (with 0 bytes it is given back); empty: it stays
    until it is too old.
    """

    sequence: int
    tenant: str
    bytes: int
    at: float
    place: str = ""


class AccessRole(StrEnum):
    """What somebody may do inside a tenant. Everybody with a role may look.

    SERVICE is for processes of the fleet itself, which call on behalf of others and name the tenant.
    """

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    APPROVER = "approver"
    ADMIN = "admin"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who makes a call, once it is known.

    Attributes:
        tenant: Whose executions, memories and workspaces they reach; never another's.
        name: Who they are, as their token or certificate says; empty where one token is everybody's.
        roles: What they may do.
        sole: Whether the fleet has one token for everybody, so that submitters and approvers cannot be told apart.
    """

    tenant: str
    name: str = ""
    roles: frozenset[AccessRole] = frozenset()
    sole: bool = False

    def may(self, role: AccessRole) -> bool:
        """Whether they may do what takes a role: an admin all that people may, everybody with a role may look."""
        if role is AccessRole.SERVICE:
            return role in self.roles
        return role in self.roles or AccessRole.ADMIN in self.roles or (role is AccessRole.VIEWER and bool(self.roles))


SOLE = Principal(tenant=DEFAULT_TENANT, roles=frozenset(AccessRole), sole=True)
"""Whoever shows the one token of a fleet that has no file of tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one tenant may use at once and in a day; 0: as much as the fleet has.

    Attributes:
        agents: Agents that run at the same time.
        tokens_per_day: Prompt and completion tokens from midnight UTC on.
        queued: Executions that wait.
        queue_share: Of the fleet's agents while others wait too, 0 to 1; 0: as much as every other tenant.
        storage_bytes: What is kept for it in NATS: events, blobs with uploads and checkpoints, results; and, by itself,
            what the context service keeps.
    """

    agents: int = 0
    tokens_per_day: int = 0
    queued: int = 0
    queue_share: float = 0.0
    storage_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """What holds for a tenant whatever its callers ask for.

    Attributes:
        tenant: Its name: 1 to 63 of a-z, 0-9 and '-', beginning with a letter.
        quota: What it may use.
        approval: The least that people approve of its tasks; a caller may ask for more.
        require_verified: Whether only what evidence verifies may win; a caller may ask for it, too.
        default_repository: What tasks without a repository work on, a path or a URL; empty: they are refused.
        model_patience_seconds: How long its runs wait while no model server serves; None: as the installation says.
        agent_endpoints: Where its admins may register agents that others run: host:port patterns; within the fleet's.
        harnesses: Those of the installation that its tasks may use; None: all.
        retention_days: How long executions are kept once they have ended, with all that came of them; 0: as events are.
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
        """What people approve of a task whose caller asked for this: whichever asks for more."""
        return max(asked, self.approval, key=_STRICTER.index)
