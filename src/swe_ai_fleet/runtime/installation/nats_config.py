"""The configuration of a NATS server with the fleet's accounts, in JSON, which its own format takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_ai_fleet.runtime.installation.nats_users import (
    ACCOUNT,
    SYSTEM,
    NatsUser,
    account_name,
    fleet_users,
    heard_by_tenant,
    sent_by_tenant,
)

_NOTE = "# Written by `fleet init` from the keys beside it; the next one writes it anew.\n"
_SERVER_NOTE = "# Written by `fleet init` once; it is yours to change.\n"


def accounts_file(public_keys: Mapping[str, str], tenants: Sequence[str], *, others: Sequence[str] = ()) -> str:
    """The accounts: the fleet's with its users, that of NATS itself, one for each tenant.

    Args:
        public_keys: The public nkey of each user by name: those of `fleet_users`, `sys`, `tenant-<name>`.
        tenants: Names of the tenants that have an account.
        others: Of those that may have none, whose results agents must not write either.
    """
    accounts: dict[str, object] = {
        SYSTEM: {"users": [{"nkey": public_keys["sys"]}]},
        ACCOUNT: {
            "jetstream": "enabled",
            "users": [_user(user, public_keys[user.name]) for user in fleet_users(sorted({*tenants, *others}))],
            "exports": [export for tenant in tenants for export in _exports(tenant)],
        },
    }
    for tenant in tenants:
        accounts[account_name(tenant)] = {
            "users": [{"nkey": public_keys[f"tenant-{tenant}"], "permissions": _of_tenant(tenant)}],
            "imports": _imports(tenant),
        }
    return f'{_NOTE}"accounts": {_json(accounts)}\n"system_account": "{SYSTEM}"\n'


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


def _user(user: NatsUser, public_key: str) -> dict[str, object]:
    publish: dict[str, object] = {"allow": list(user.sends)}
    if user.never_sends:
        publish["deny"] = list(user.never_sends)
    # Answers go to a place of the user's own: who hears everybody's inbox, hears what others read.
    hears = [*user.hears, f"_INBOX.{public_key}.>"]
    return {"nkey": public_key, "permissions": {"publish": publish, "subscribe": {"allow": hears}}}


def _exports(tenant: str) -> list[Mapping[str, object]]:
    accounts = [account_name(tenant)]
    heard = [{"stream": one.fleet, "accounts": accounts} for one in heard_by_tenant(tenant)]
    return [*heard, *({"service": one.fleet, "accounts": accounts} for one in sent_by_tenant(tenant))]


def _imports(tenant: str) -> list[Mapping[str, object]]:
    heard = [{"stream": {"account": ACCOUNT, "subject": one.fleet}, "to": one.short} for one in heard_by_tenant(tenant)]
    sent = [{"service": {"account": ACCOUNT, "subject": one.fleet}, "to": one.short} for one in sent_by_tenant(tenant)]
    return [*heard, *sent]


def _of_tenant(tenant: str) -> dict[str, object]:
    hears = [one.short for one in heard_by_tenant(tenant)]
    return {
        "publish": {"allow": [one.short for one in sent_by_tenant(tenant)]},
        "subscribe": {"allow": [*hears, "_INBOX.>"]},
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2)
