"""Where everything of an installation lies."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.json_values import mappings
from swe_ai_fleet.runtime.installation.nats_config import accounts_file
from swe_ai_fleet.runtime.installation.nats_users import fleet_users, public_key

SERVERS = ("orchestrator", "context", "gateway", "nats")
"""Who shows a certificate."""
SERVICES = ("orchestrator", "gateway")
"""Who calls other services for somebody."""
ISSUER = "issuer"
"""Whose key lets hosts of agents in on NATS."""
_Told = TypeVar("_Told", dict[str, object], list[object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files below a directory that `fleet init` writes."""

    directory: Path

    @property
    def settings(self) -> Path:
        return self.directory / "fleet.toml"

    @property
    def access(self) -> Path:
        return self.directory / "access.toml"

    @property
    def authority(self) -> Path:
        """The certificate that everybody who calls needs."""
        return self.directory / "tls" / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """The one file that no server needs: whoever has it makes certificates."""
        return self.directory / "tls" / "ca-key.pem"

    def certificate(self, name: str) -> Path:
        """Of one of `SERVERS`."""
        return self.directory / "tls" / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.directory / "tls" / f"{name}-key.pem"

    def nkey(self, user: str) -> Path:
        """The seed of a user on NATS."""
        return self.directory / "nats" / f"{user}.nkey"

    @property
    def accounts(self) -> Path:
        return self.directory / "nats" / "accounts.conf"

    @property
    def former(self) -> Path:
        """An overlap after a rotation: until when, and the public nkeys that are let in as well."""
        return self.directory / "nats" / "former.json"

    def former_keys(self) -> tuple[Mapping[str, str], float]:
        """Those keys by user, and the end of the overlap (seconds since 1970, 0: none). Raises PreconditionFailed."""
        try:
            content = json.loads(self.former.read_text(encoding="utf-8"))
            return {str(user): str(key) for user, key in content["keys"].items()}, float(content["until"])
        except FileNotFoundError:
            return {}, 0.0
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PreconditionFailed(
                f"{self.former} cannot be read: {error!r}", field="init", hint="remove it: then only new keys count"
            ) from error

    @property
    def server(self) -> Path:
        """The configuration of a NATS server on this machine."""
        return self.directory / "nats" / "nats.conf"

    @property
    def ray_token(self) -> Path:
        return self.directory / "secrets" / "ray-token"

    @property
    def audit_key(self) -> Path:
        """What signs where audit chains stand; the orchestrators' alone."""
        return self.directory / "secrets" / "audit-signing-key.pem"

    @property
    def audit_public_keys(self) -> Path:
        """By what others verify it, earlier keys' too."""
        return self.directory / "secrets" / "audit-public-keys.pem"

    def service_token(self, name: str) -> Path:
        """What one of `SERVICES` shows to those that it calls for others."""
        return self.directory / "secrets" / f"{name}.token"

    @property
    def kubernetes(self) -> Path:
        return self.directory / "kubernetes"

    @property
    def directories(self) -> tuple[Path, ...]:
        """Those that every installation has, the outermost first."""
        return (self.directory, *(self.directory / name for name in ("tls", "nats", "secrets", "home")))

    def tenants(self) -> tuple[str, ...]:
        """The tenants that have an account on NATS, by name."""
        return tuple(sorted(path.stem.removeprefix("tenant-") for path in self.nkey("x").parent.glob("tenant-*.nkey")))

    def named_tenants(self) -> tuple[str, ...]:
        """The tenants that the access file names, account or not. Raises PreconditionFailed where it is broken."""
        return tuple(sorted(self._table("tenants", dict[str, object]())))

    def named_tokens(self) -> Mapping[str, str]:
        """The digests of tokens in the access file by their names. Raises PreconditionFailed where it is broken."""
        entries = mappings(self._table("tokens", list[object]()))
        return {str(entry.get("name", "")): str(entry.get("sha256", "")) for entry in entries}

    def _table(self, name: str, default: _Told) -> _Told:
        try:
            value: object = tomllib.loads(self.access.read_text(encoding="utf-8")).get(name, default)
        except FileNotFoundError:
            return default
        except ValueError as error:
            raise PreconditionFailed(f"{self.access} is not TOML: {error}", field="access_file") from None
        if not isinstance(value, type(default)):
            raise PreconditionFailed(f"{name} of {self.access} is none", field="access_file", hint="see docs/access.md")
        return value


def users(tenants: tuple[str, ...]) -> tuple[str, ...]:
    """Everybody who has an nkey of a user."""
    return (*(user.name for user in fleet_users()), "sys", *(f"tenant-{tenant}" for tenant in tenants))


def accounts_of(layout: Layout, tenants: tuple[str, ...]) -> str:
    """The configuration of NATS' accounts that fits the nkeys and tenants. Raises PreconditionFailed."""
    keys = {name: public_key(layout.nkey(name)) for name in (*users(tenants), ISSUER)}
    former = {name: key for name, key in layout.former_keys()[0].items() if key != keys.get(name)}
    keys["callout"] = public_key(layout.nkey(ISSUER), as_user=True)
    return accounts_file(keys, tenants, others=layout.named_tenants(), former=former)
