"""The configuration of a NATS server with the fleet's accounts, in JSON, which its own format takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_ai_fleet.runtime.installation.nats_users import (
    ACCOUNT,
    HOSTS,
    ORCHESTRATOR,
    SYSTEM,
    NatsUser,
    account_name,
    fleet_users,
    heard_by_hosts,
    heard_by_tenant,
    hosts_account,
    sent_by_hosts,
    sent_by_tenant,
)

_NOTE = "# Written by `fleet init` from the keys beside it; the next one writes it anew.\n"
_LOGIN_SECONDS = 3
"""How long the server waits for an orchestrator to say who logs in."""
_SERVER_NOTE = "# Written by `fleet init` once; it is yours to change.\n"


def accounts_file(public_keys: Mapping[str, str], tenants: Sequence[str], *, others: Sequence[str] = ()) -> str:
    """The accounts: the fleet's with its users, that of NATS itself, two for each tenant; and who lets hosts in.

    Args:
        public_keys: The public nkey of each user by name: those of `fleet_users`, `sys`, `tenant-<name>`; and `issuer`.
        tenants: Names of the tenants that have an account.
        others: Of those whose hosts have one only.
    """
    hosted = sorted({*tenants, *others})
    accounts: dict[str, object] = {
        SYSTEM: {"users": [{"nkey": public_keys["sys"]}]},
        ACCOUNT: {
            "jetstream": "enabled",
            "users": [_user(user, public_keys[user.name]) for user in fleet_users()],
            "exports": [*(export for tenant in tenants for export in _exports(tenant)), *_for_hosts(hosted)],
        },
        **_accounts_of_hosts(hosted),
    }
    for tenant in tenants:
        accounts[account_name(tenant)] = {
            "users": [{"nkey": public_keys[f"tenant-{tenant}"], "permissions": _of_tenant(tenant)}],
            "imports": _imports(tenant),
        }
    callout = _callout(public_keys["issuer"], public_keys[ORCHESTRATOR])
    return f'{_NOTE}"accounts": {_json(accounts)}\n"system_account": "{SYSTEM}"\n"authorization": {_json(callout)}\n'


def own_accounts(login: tuple[str, str], issuer: str, tenants: Sequence[str], *, max_file_bytes: int = 0) -> str:
    """The accounts of a server of our own: one user who may do everything, and the hosts of tenants' agents.

    Args:
        login: Name and password of that user.
        issuer: The public nkey of who lets hosts in.
        tenants: Whose hosts have an account.
        max_file_bytes: What the fleet may store in all, which clients are told; 0: as much as the server has room for.
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


def server_file(
    *, listen: str, store: Path, certificate: Path, key: Path, accounts: str, max_file_bytes: int = 0
) -> str:
    """The configuration of a server on one machine.

    Args:
        listen: `host:port`.
        store: Where JetStream keeps everything.
        certificate: What it shows.
        key: Its key.
        accounts: The file with the accounts, from this one.
        max_file_bytes: What JetStream may store in all; 0: the server's own default.
    """
    settings: dict[str, object] = {
        "server_name": "fleet",
        "listen": listen,
        "tls": {"cert_file": str(certificate), "key_file": str(key), "min_version": "1.2"},
        "jetstream": {"store_dir": str(store)} | ({"max_file_store": max_file_bytes} if max_file_bytes else {}),
    }
    lines = [f'"{name}": {_json(value)}\n' for name, value in settings.items()]
    return f"{_SERVER_NOTE}{''.join(lines)}include {json.dumps(accounts)}\n"


def _callout(issuer: str, user: str) -> dict[str, object]:
    """Whoever is no user is asked about. A server that runs cannot change this, so no tenant stands in it."""
    asked = {"issuer": issuer, "account": ACCOUNT, "auth_users": [user], "allowed_accounts": [HOSTS]}
    return {"timeout": _LOGIN_SECONDS, "auth_callout": asked}


def _for_hosts(tenants: Sequence[str]) -> list[Mapping[str, object]]:
    exports: list[Mapping[str, object]] = []
    for tenant in tenants:
        accounts = [hosts_account(tenant)]
        exports += [{"service": subject, "accounts": accounts} for subject in sent_by_hosts(tenant)]
        exports.append({"stream": heard_by_hosts(tenant), "accounts": accounts})
    return exports


def _accounts_of_hosts(tenants: Sequence[str]) -> dict[str, object]:
    # An account that nobody is in: users of the others are never asked about.
    fields: dict[str, object] = {HOSTS: {}}
    for tenant in tenants:
        imports: list[Mapping[str, object]] = [
            {"service": {"account": ACCOUNT, "subject": subject}} for subject in sent_by_hosts(tenant)
        ]
        imports.append({"stream": {"account": ACCOUNT, "subject": heard_by_hosts(tenant)}})
        fields[hosts_account(tenant)] = {"imports": imports}
    return fields


def _user(user: NatsUser, public_key: str) -> dict[str, object]:
    publish: dict[str, object] = {"allow": list(user.sends)}
    # Answers go to a place of the user's own: who hears everybody's inbox, hears what others read.
    hears = [*user.hears, f"_INBOX.{public_key}.>"]
    permissions: dict[str, object] = {"publish": publish, "subscribe": {"allow": hears}}
    if user.answers:
        permissions["allow_responses"] = {"max": 1, "expires": "1m"}
    return {"nkey": public_key, "permissions": permissions}


def _exports(tenant: str) -> list[Mapping[str, object]]:
    accounts = [account_name(tenant)]
    heard = [{"stream": subject.fleet, "accounts": accounts} for subject in heard_by_tenant(tenant)]
    return [*heard, *({"service": subject.fleet, "accounts": accounts} for subject in sent_by_tenant(tenant))]


def _imports(tenant: str) -> list[Mapping[str, object]]:
    heard = [
        {"stream": {"account": ACCOUNT, "subject": subject.fleet}, "to": subject.short}
        for subject in heard_by_tenant(tenant)
    ]
    sent = [
        {"service": {"account": ACCOUNT, "subject": subject.fleet}, "to": subject.short}
        for subject in sent_by_tenant(tenant)
    ]
    return [*heard, *sent]


def _of_tenant(tenant: str) -> dict[str, object]:
    hears = [subject.short for subject in heard_by_tenant(tenant)]
    return {
        "publish": {"allow": [subject.short for subject in sent_by_tenant(tenant)]},
        "subscribe": {"allow": [*hears, "_INBOX.>"]},
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2)
