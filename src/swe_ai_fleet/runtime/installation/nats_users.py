"""The users of the fleet's account on NATS and what each may send and hear: as little as it can do with.

Other accounts are the tenants', each with one user, who sees the fleet's subjects of that tenant by their short names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swe_ai_fleet.adapters.jetstream.subjects import (
    COMMANDS,
    CONTEXT_CHANGES,
    EVENTS,
    JOBS,
    RESULTS,
    STREAM_SUBJECTS,
    results_of,
    token,
)
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET

ACCOUNT, SYSTEM = "FLEET", "SYS"
ORCHESTRATOR, AGENTS, CONTEXT, GATEWAY, WORKER, OPERATOR = (
    "orchestrator",
    "agents",
    "context",
    "gateway",
    "worker",
    "operator",
)
_API = "$JS.API"
_RECORDER = "context-recorder"
"""The lasting consumer through which the context service hears of ended executions."""
_BLOBS = "agent-blobs"
_READ = (
    "STREAM.INFO.{}",
    "STREAM.MSG.GET.{}",
    "CONSUMER.CREATE.{}.*",
    "CONSUMER.MSG.NEXT.{}.*",
    "CONSUMER.DELETE.{}.*",
)
_MAKE = ("STREAM.CREATE.{}", "STREAM.UPDATE.{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsUser:
    """A user of the fleet's account: subjects that it may send to, except some, and hear beside its own inbox."""

    name: str
    sends: tuple[str, ...]
    never_sends: tuple[str, ...] = ()
    hears: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSubject:
    """A subject of the fleet that a tenant's account sees under a shorter name."""

    fleet: str
    short: str


def account_name(tenant: str) -> str:
    """The account of a tenant."""
    return f"TENANT_{tenant}"


def fleet_users(tenants: Sequence[str]) -> tuple[NatsUser, ...]:
    """Every user of the fleet's account; what agents may not say depends on the tenants there are."""
    return (
        NatsUser(
            name=ORCHESTRATOR,
            sends=(
                *(subject for subjects in STREAM_SUBJECTS.values() for subject in subjects),
                "agent.live.>",
                "$KV.>",
                "$O.>",
                "$JS.ACK.>",
                f"{_API}.INFO",
                *_calls("*", _READ, _MAKE),
                f"{_API}.CONSUMER.NAMES.*",
                f"{_API}.CONSUMER.INFO.*.*",
            ),
            hears=("agent.live.>",),
        ),
        NatsUser(
            name=AGENTS,
            sends=(
                "agent.events.*.*.*",
                "agent.results.*.*",
                "agent.results.*.*.*",
                "agent.live.text.>",
                "$KV.agent-jobs.>",
                f"$KV.{TEST_RUNS_BUCKET}.>",
                f"$O.{_BLOBS}.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls(EVENTS, _READ),
                *_calls(f"OBJ_{_BLOBS}", _READ),
                *_calls("KV_agent-jobs", _READ),
                *_calls(f"KV_{TEST_RUNS_BUCKET}", _READ),
                *_calls(f"KV_{RECIPES_BUCKET}", _READ),
                f"{_API}.STREAM.MSG.GET.{RESULTS}",
            ),
            never_sends=(
                f"agent.events.*.*.{EXECUTION_SUBJECT}",
                f"agent.events.*.*.{CONTROL_SUBJECT}",
                # Of other tenants than the default one, the execution's own result.
                *(f"{results_of(tenant)}.*" for tenant in tenants if tenant != DEFAULT_TENANT),
                *(f"{_API}.CONSUMER.{verb}.{EVENTS}.{_RECORDER}" for verb in ("CREATE", "DELETE", "MSG.NEXT")),
            ),
            hears=("agent.live.want.*.*",),
        ),
        NatsUser(
            name=CONTEXT,
            sends=(
                *STREAM_SUBJECTS[CONTEXT_CHANGES],
                "agent.dlq.*",
                "$KV.agent-memories.>",
                "$KV.agent-outcomes.>",
                f"$JS.ACK.{EVENTS}.>",
                f"$JS.ACK.{CONTEXT_CHANGES}.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls(EVENTS, _READ),
                *_calls(f"OBJ_{_BLOBS}", _READ),
                *_calls(CONTEXT_CHANGES, _READ, _MAKE),
                *_calls("KV_agent-memories", _READ, _MAKE),
                *_calls("KV_agent-outcomes", _READ, _MAKE),
            ),
        ),
        NatsUser(
            name=GATEWAY,
            sends=(
                "$KV.HTTP_KEYS.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls("KV_HTTP_KEYS", _READ, _MAKE),
            ),
        ),
        NatsUser(
            name=WORKER,
            sends=(
                "agent.results.>",
                "agent.dlq.*",
                "$KV.agent-jobs.>",
                f"$O.{_BLOBS}.>",
                f"$JS.ACK.{JOBS}.>",
                f"$JS.ACK.{COMMANDS}.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls(JOBS, _READ),
                *_calls(COMMANDS, _READ),
                *_calls(f"OBJ_{_BLOBS}", _READ),
                *_calls("KV_agent-jobs", _READ, _MAKE),
                f"{_API}.STREAM.MSG.GET.{RESULTS}",
            ),
        ),
        # For backups and a look with the `nats` tool: all of the account. Its seed belongs on no node.
        NatsUser(name=OPERATOR, sends=(">",), hears=(">",)),
    )


def heard_by_tenant(tenant: str) -> tuple[TenantSubject, ...]:
    """What a tenant hears.

    Of the default tenant only the results of executions: those of its agents have names such as other tenants' results
    have.
    """
    events = TenantSubject(fleet=f"agent.events.{token(tenant)}.>", short="agent.events.>")
    if tenant == DEFAULT_TENANT:
        return events, TenantSubject(fleet="agent.results.*", short="agent.results.*")
    return events, TenantSubject(fleet=f"{results_of(tenant)}.>", short="agent.results.>")


def sent_by_tenant(tenant: str) -> tuple[TenantSubject, ...]:
    """What a tenant sends: tasks, whose subject names the tenant whatever is in them."""
    return (TenantSubject(fleet=f"agent.cmd.execute.{token(tenant)}", short="agent.cmd.execute"),)


def streams_of_the_fleet() -> tuple[str, ...]:
    """The streams that every fleet has."""
    return (*STREAM_SUBJECTS, f"OBJ_{_BLOBS}")


def _calls(stream: str, *verbs: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{_API}.{verb.format(stream)}" for some in verbs for verb in some)
