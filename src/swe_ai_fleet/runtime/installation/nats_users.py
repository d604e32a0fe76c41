"""Users on NATS: their nkeys, and what each may send and hear, which is as little as it can do with.

The seed of an nkey lies in a file, the public key in the server's configuration.

Beside the fleet's account, accounts are the tenants'. One of each has one user, who sees the fleet's subjects of that
tenant by their short names. In the other one are the hosts of the tenant's agents: what an account doesn't import
cannot be reached from it, neither by a subject nor by the reply that a request names, which permissions of users know
nothing of.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from swe_ai_fleet.adapters.jetstream.protocol import (
    ASKED,
    COMMANDS,
    CONTEXT_CHANGES,
    EVENTS,
    JOBS,
    RESULTS,
    STREAM_SUBJECTS,
    results_of,
    token,
)
from swe_ai_fleet.adapters.jetstream.requests import Ask
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET, tenant_key
from swe_ai_fleet.runtime.jobs import JOBS_BUCKET, tenant_token

_SEED_BYTES = 32


def new_seed(*, account: bool = False) -> str:
    """The seed of a new user, or of an account."""
    import nkeys

    library = cast("Any", nkeys)
    kind = library.PREFIX_BYTE_ACCOUNT if account else library.PREFIX_BYTE_USER
    return bytes(library.encode_seed(secrets.token_bytes(_SEED_BYTES), kind)).decode() + "\n"


def public_key(path: Path, *, as_user: bool = False) -> str:
    """The public key of the seed in a file; `as_user`, that of a user with the key of an account.

    Raises PreconditionFailed where there is no seed.
    """
    import nkeys

    library = cast("Any", nkeys)
    try:
        seed = bytearray(path.read_bytes().strip())
        if as_user:
            seed = library.encode_seed(library.decode_seed(seed)[1], library.PREFIX_BYTE_USER)
        return bytes(library.from_seed(bytearray(seed)).public_key).decode().rstrip("=")
    except (OSError, nkeys.NkeysError, ValueError) as error:
        raise PreconditionFailed(
            f"{path} contains no nkey seed: {error}", field="init", hint="restore it, or `fleet init --rotate nats`"
        ) from error


ACCOUNT, SYSTEM, HOSTS = "FLEET", "SYS", "HOSTS"
ORCHESTRATOR, CONTEXT, GATEWAY, WORKER, OPERATOR = (
    "orchestrator",
    "context",
    "gateway",
    "worker",
    "operator",
)
NEVER_BY_HOSTS = (f"agent.events.*.*.{EXECUTION_SUBJECT}", f"agent.events.*.*.{CONTROL_SUBJECT}")
HOSTS_BUCKET = "agent-hosts"
"""Who may log in as a host of agents, as long as it lives."""
KV = "$KV."
_API = "$JS.API"
_GET = f"{_API}.DIRECT.GET"
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
    """A user of the fleet's account: subjects that it may send to and hear beside its own inbox; whether it answers."""

    name: str
    sends: tuple[str, ...]
    hears: tuple[str, ...] = ()
    answers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSubject:
    """A subject of the fleet that a tenant's account sees under a shorter name."""

    fleet: str
    short: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """The one assignment of a container: its agent, and the job and the run on the board."""

    execution_id: str
    agent_id: str
    job_id: str
    run_id: str


def account_name(tenant: str) -> str:
    """The account of a tenant."""
    return f"TENANT_{tenant}"


def hosts_account(tenant: str) -> str:
    """The account of the hosts of a tenant's agents."""
    return f"{HOSTS}_{tenant}"


def fleet_users() -> tuple[NatsUser, ...]:
    """Every user of the fleet's account."""
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
                f"{_API}.STREAM.LIST",
                f"{_API}.STREAM.MSG.DELETE.*",
                f"{_API}.CONSUMER.NAMES.*",
                f"{_API}.CONSUMER.INFO.*.*",
            ),
            hears=("agent.live.>", ASKED, "$SYS.REQ.USER.AUTH"),
            answers=True,
        ),
        NatsUser(
            name=CONTEXT,
            sends=(
                *STREAM_SUBJECTS[CONTEXT_CHANGES],
                "agent.dlq.*",
                "$KV.agent-memories.>",
                "$KV.agent-outcomes.>",
                "$KV.context-snapshots.>",
                f"$JS.ACK.{EVENTS}.>",
                f"$JS.ACK.{CONTEXT_CHANGES}.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls(EVENTS, _READ),
                *_calls(f"OBJ_{_BLOBS}", _READ),
                *_calls(CONTEXT_CHANGES, _READ, _MAKE),
                *_calls("KV_agent-memories", _READ, _MAKE),
                *_calls("KV_agent-outcomes", _READ, _MAKE),
                *_calls("KV_context-snapshots", _READ, _MAKE),
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
                f"$KV.{JOBS_BUCKET}.>",
                f"$O.{_BLOBS}.>",
                f"$JS.ACK.{JOBS}.>",
                f"$JS.ACK.{COMMANDS}.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls(JOBS, _READ),
                *_calls(COMMANDS, _READ),
                *_calls(f"OBJ_{_BLOBS}", _READ),
                *_calls(f"KV_{JOBS_BUCKET}", _READ, _MAKE),
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


def sent_by_hosts(tenant: str, only: OneRun | None = None) -> tuple[str, ...]:
    """What hosts of a tenant's agents send, and ask for; with `only`, one that carries one assignment out.

    What executions say (`_`) and what people say to them (`~`) match it, too: the users of hosts have `NEVER_BY_HOSTS`.
    """
    name, jobs, shared = token(tenant), tenant_token(tenant), tenant_key(tenant)
    execution = token(only.execution_id) if only else "*"
    agent = token(only.agent_id) if only else "*"
    job, run = (only.job_id, only.run_id) if only else ("*", "*")
    board = f"{KV}{JOBS_BUCKET}.{jobs}"
    read = (
        f"{_GET}.{EVENTS}.agent.events.{name}.{execution}.*",
        *(f"{_GET}.KV_{JOBS_BUCKET}.{board}.{key}.*" for key in dict.fromkeys((job, run))),
        *(f"{_GET}.KV_{bucket}.{KV}{bucket}.{shared}.*" for bucket in (TEST_RUNS_BUCKET, RECIPES_BUCKET)),
    )
    return (
        f"agent.events.{name}.{execution}.{agent}",
        f"agent.live.text.{name}.{execution}.*",
        f"$O.{_BLOBS}.C.{name}.*",
        f"{board}.{job}.outcome",
        f"{board}.{run}.pinned",
        f"{KV}{TEST_RUNS_BUCKET}.{shared}.*",
        *read,
        *(f"agent.ask.{question}.{name}.{execution}" for question in (Ask.EVENTS, Ask.RESULT, Ask.DESCRIBE)),
        # Bundles and patches of other executions are shared.
        *(f"agent.ask.{question}.{name}.*" for question in (Ask.INFO, Ask.CONTENT)),
    )


def heard_by_hosts(tenant: str) -> str:
    """What hosts of a tenant's agents hear beside answers: that somebody listens."""
    return f"agent.live.want.{token(tenant)}.*"


def _calls(stream: str, *verbs: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{_API}.{verb.format(stream)}" for some in verbs for verb in some)
