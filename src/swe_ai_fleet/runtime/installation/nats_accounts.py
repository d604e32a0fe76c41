"""Accounts and users on NATS with their minimal permissions, written as a server's configuration in JSON.

Beside the fleet's account, each tenant has two. One has a single user, who sees the fleet's subjects of that tenant by
their short names. The other one is for the tenant's agent hosts: an account cannot reach what it does not import,
neither by a subject nor by the reply subject of a request, which users' permissions do not check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.jetstream.protocol import (
    ASKED,
    BLOBS,
    BLOBS_BUCKET,
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
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET, tenant_key
from swe_ai_fleet.runtime.jobs import JOBS_BUCKET, tenant_token

ACCOUNT, SYSTEM, HOSTS = "FLEET", "SYS", "HOSTS"
OPERATOR = "operator"
DENIED_TO_HOSTS = (f"agent.events.*.*.{EXECUTION_SUBJECT}", f"agent.events.*.*.{CONTROL_SUBJECT}")
HOSTS_BUCKET = "agent-hosts"
"""The grants of agent hosts' logins, renewed while the hosts live."""
KV = "$KV."
_API = "$JS.API"
_GET = f"{_API}.DIRECT.GET"
_READ = (
    "STREAM.INFO.{}",
    "STREAM.MSG.GET.{}",
    "CONSUMER.CREATE.{}.*",
    "CONSUMER.MSG.NEXT.{}.*",
    "CONSUMER.DELETE.{}.*",
)
_MAKE = ("STREAM.CREATE.{}", "STREAM.UPDATE.{}")
_NOTE = "# Written by `fleet init` from the keys beside it; the next one writes it anew.\n"
_LOGIN_SECONDS = 3
"""How long the server waits for an orchestrator's answer to a login."""
_NOTHING = {"publish": {"deny": ">"}, "subscribe": {"deny": ">"}}
_SERVER_NOTE = "# Written by `fleet init` once; it is yours to change.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsUser:
    """A user of the fleet's account: the subjects it may publish and, beside its inbox, subscribe to."""

    name: str
    publishes: tuple[str, ...]
    subscribes: tuple[str, ...] = ()
    answers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSubject:
    """A subject of the fleet that a tenant's account imports under a shorter name."""

    fleet: str
    short: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """The only assignment of a container: its agent, and its job and run on the board."""

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
            name="orchestrator",
            publishes=(
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
            subscribes=("agent.live.>", ASKED, "$SYS.REQ.USER.AUTH"),
            answers=True,
        ),
        NatsUser(
            name="context",
            publishes=(
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
                *_calls(BLOBS, _READ),
                *_calls(CONTEXT_CHANGES, _READ, _MAKE),
                *_calls("KV_agent-memories", _READ, _MAKE),
                *_calls("KV_agent-outcomes", _READ, _MAKE),
                *_calls("KV_context-snapshots", _READ, _MAKE),
            ),
        ),
        NatsUser(
            name="gateway",
            publishes=(
                "$KV.HTTP_KEYS.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls("KV_HTTP_KEYS", _READ, _MAKE),
            ),
        ),
        NatsUser(
            name="worker",
            publishes=(
                "agent.results.>",
                "agent.dlq.*",
                f"$KV.{JOBS_BUCKET}.>",
                f"$O.{BLOBS_BUCKET}.>",
                f"$JS.ACK.{JOBS}.>",
                f"$JS.ACK.{COMMANDS}.>",
                f"{_API}.INFO",
                f"{_API}.STREAM.INFO.*",
                *_calls(JOBS, _READ),
                *_calls(COMMANDS, _READ),
                *_calls(BLOBS, _READ),
                *_calls(f"KV_{JOBS_BUCKET}", _READ, _MAKE),
                f"{_API}.STREAM.MSG.GET.{RESULTS}",
            ),
        ),
        # For backups and the `nats` tool: everything in the account. Its seed belongs on no node.
        NatsUser(name=OPERATOR, publishes=(">",), subscribes=(">",)),
    )


def subscribed_by_tenant(tenant: str) -> tuple[TenantSubject, ...]:
    """The subjects that a tenant may subscribe to.

    Of results, the default tenant sees only those of executions: its agents' subjects look like other tenants' results.
    """
    events = TenantSubject(fleet=f"agent.events.{token(tenant)}.>", short="agent.events.>")
    if tenant == DEFAULT_TENANT:
        return events, TenantSubject(fleet="agent.results.*", short="agent.results.*")
    return events, TenantSubject(fleet=f"{results_of(tenant)}.>", short="agent.results.>")


def published_by_tenant(tenant: str) -> tuple[TenantSubject, ...]:
    """The subjects that a tenant may publish to: tasks, on a subject that names the tenant."""
    return (TenantSubject(fleet=f"agent.cmd.execute.{token(tenant)}", short="agent.cmd.execute"),)


def published_by_hosts(tenant: str, only: OneRun | None = None) -> tuple[str, ...]:
    """The subjects that a tenant's agent hosts may publish to; with `only`, one host of one assignment.

    They include executions' own subjects (`_`) and controls (`~`), which `DENIED_TO_HOSTS` takes from hosts' users.
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
        f"$O.{BLOBS_BUCKET}.C.{name}.*",
        f"{board}.{job}.outcome",
        f"{board}.{run}.pinned",
        f"{KV}{TEST_RUNS_BUCKET}.{shared}.*",
        *read,
        *(f"agent.ask.{question}.{name}.{execution}" for question in (Ask.EVENTS, Ask.RESULT, Ask.DESCRIBE)),
        # Bundles and patches of other executions are shared.
        *(f"agent.ask.{question}.{name}.*" for question in (Ask.INFO, Ask.CONTENT)),
    )


def subscribed_by_hosts(tenant: str) -> str:
    """The subject that a tenant's agent hosts may subscribe to beside their inbox: announcements of live watchers."""
    return f"agent.live.want.{token(tenant)}.*"


def _calls(stream: str, *verbs: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{_API}.{verb.format(stream)}" for some in verbs for verb in some)


def accounts_file(
    public_keys: Mapping[str, str],
    tenants: Sequence[str],
    *,
    others: Sequence[str] = (),
    former: Mapping[str, str] | None = None,
) -> str:
    """The accounts: the fleet's with its users, NATS' own, two for each tenant; and the auth callout for hosts.

    Args:
        public_keys: The public nkey of each user by name: those of `fleet_users`, `sys`, `tenant-<name>`, `issuer`
            and `callout`.
        former: Public nkeys of users from before a rotation, which are still valid.
    """
    hosted = sorted({*tenants, *others})
    key_sets = (public_keys, former or {})
    accounts: dict[str, object] = {
        SYSTEM: {"users": [{"nkey": keys["sys"]} for keys in key_sets if "sys" in keys]},
        ACCOUNT: {
            "jetstream": "enabled",
            "users": [
                *(_user(user, keys[user.name]) for keys in key_sets for user in fleet_users() if user.name in keys),
                {"nkey": public_keys["callout"], "permissions": _NOTHING},
            ],
            "exports": [*(export for tenant in tenants for export in _exports(tenant)), *_for_hosts(hosted)],
        },
        **_accounts_of_hosts(hosted),
    }
    for tenant in tenants:
        accounts[account_name(tenant)] = {
            "users": [{"nkey": public_keys[f"tenant-{tenant}"], "permissions": _of_tenant(tenant)}],
            "imports": _imports(tenant),
        }
    callout = _callout(public_keys["issuer"], public_keys["callout"])
    return f'{_NOTE}"accounts": {_json(accounts)}\n"system_account": "{SYSTEM}"\n"authorization": {_json(callout)}\n'


def own_accounts(login: tuple[str, str], issuer: str, tenants: Sequence[str], *, max_file_bytes: int = 0) -> str:
    """The accounts of a server of our own: one user with all permissions, and the hosts of tenants' agents.

    Args:
        max_file_bytes: The fleet's storage limit, which clients can read; 0: as much as the server has room for.
    """
    name, password = login
    accounts: dict[str, object] = {
        ACCOUNT: {
            "jetstream": {"max_file": max_file_bytes} if max_file_bytes else "enabled",
            "users": [{"user": name, "password": password}],
            "exports": _for_hosts(tenants),
        },
        **_accounts_of_hosts(tenants),
    }
    return f'"accounts": {_json(accounts)}\n"authorization": {_json(_callout(issuer, name))}\n'


def server_file(*, listen: str, store: Path, certificate: Path, key: Path, accounts: str) -> str:
    """The configuration of a server on one machine."""
    settings: dict[str, object] = {
        "server_name": "fleet",
        "listen": listen,
        "tls": {"cert_file": str(certificate), "key_file": str(key), "min_version": "1.2"},
        "jetstream": {"store_dir": str(store)},
    }
    lines = [f'"{name}": {_json(value)}\n' for name, value in settings.items()]
    return f"{_SERVER_NOTE}{''.join(lines)}include {json.dumps(accounts)}\n"


def _callout(issuer: str, user: str) -> dict[str, object]:
    """The auth callout: NATS asks the orchestrators about every login that is not one of its own users.

    A running server cannot change this configuration, so it names no tenants, and as the required user one whose key is
    as old as the issuer's. The answers are authenticated by their signature.
    """
    callout = {"issuer": issuer, "account": ACCOUNT, "auth_users": [user], "allowed_accounts": [HOSTS]}
    return {"timeout": _LOGIN_SECONDS, "auth_callout": callout}


def _for_hosts(tenants: Sequence[str]) -> list[Mapping[str, object]]:
    exports: list[Mapping[str, object]] = []
    for tenant in tenants:
        accounts = [hosts_account(tenant)]
        exports += [{"service": subject, "accounts": accounts} for subject in published_by_hosts(tenant)]
        exports.append({"stream": subscribed_by_hosts(tenant), "accounts": accounts})
    return exports


def _accounts_of_hosts(tenants: Sequence[str]) -> dict[str, object]:
    # An empty account for the callout: logins to other accounts are never asked about.
    fields: dict[str, object] = {HOSTS: {}}
    for tenant in tenants:
        imports: list[Mapping[str, object]] = [
            {"service": {"account": ACCOUNT, "subject": subject}} for subject in published_by_hosts(tenant)
        ]
        imports.append({"stream": {"account": ACCOUNT, "subject": subscribed_by_hosts(tenant)}})
        fields[hosts_account(tenant)] = {"imports": imports}
    return fields


def _user(user: NatsUser, public_key: str) -> dict[str, object]:
    publish: dict[str, object] = {"allow": list(user.publishes)}
    # Answers go to the user's own inbox: a user with everybody's inbox could read others' answers.
    inboxes_and_subjects = [*user.subscribes, f"_INBOX.{public_key}.>"]
    permissions: dict[str, object] = {"publish": publish, "subscribe": {"allow": inboxes_and_subjects}}
    if user.answers:
        permissions["allow_responses"] = {"max": 1, "expires": "1m"}
    return {"nkey": public_key, "permissions": permissions}


def _exports(tenant: str) -> list[Mapping[str, object]]:
    accounts = [account_name(tenant)]
    streams = [{"stream": subject.fleet, "accounts": accounts} for subject in subscribed_by_tenant(tenant)]
    return [*streams, *({"service": subject.fleet, "accounts": accounts} for subject in published_by_tenant(tenant))]


def _imports(tenant: str) -> list[Mapping[str, object]]:
    streams = [
        {"stream": {"account": ACCOUNT, "subject": subject.fleet}, "to": subject.short}
        for subject in subscribed_by_tenant(tenant)
    ]
    services = [
        {"service": {"account": ACCOUNT, "subject": subject.fleet}, "to": subject.short}
        for subject in published_by_tenant(tenant)
    ]
    return [*streams, *services]


def _of_tenant(tenant: str) -> dict[str, object]:
    subjects = [subject.short for subject in subscribed_by_tenant(tenant)]
    return {
        "publish": {"allow": [subject.short for subject in published_by_tenant(tenant)]},
        "subscribe": {"allow": [*subjects, "_INBOX.>"]},
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2)
