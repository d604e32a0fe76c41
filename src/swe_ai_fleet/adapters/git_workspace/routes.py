"""Routes: how our git gets to a remote repository, and nowhere else.

Git resolves names itself, follows redirects, and has ssh read what lies in a home. So over http it goes through a proxy
of ours that judges each connection, and ssh is told one judged address and one key.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from swe_ai_fleet.adapters.git_workspace.locations import Remote, RemoteHosts
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.sandbox.addresses import PrivateHostError, Resolver, UnknownHostError, judged
from swe_ai_fleet.sandbox.proxy import FilteringProxy

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_BASIC = {"GIT_HTTP_PROXY_AUTHMETHOD": "basic"}
_SSH_PORT = 22
_SSH_OPTIONS = {
    # One key and no other: no agent, no home, no configuration of this machine.
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "PreferredAuthentications": "publickey",
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "UpdateHostKeys": "no",
    "CheckHostIP": "no",
    "VerifyHostKeyDNS": "no",
    "CanonicalizeHostname": "no",
    "ProxyCommand": "none",
    "ProxyJump": "none",
    "ControlMaster": "no",
    "ControlPath": "none",
    "PermitLocalCommand": "no",
    "ForwardAgent": "no",
    "ClearAllForwardings": "yes",
    "ConnectTimeout": "30",
}
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What opens a remote repository: a password over http, a private key (as OpenSSH writes it) over ssh.

    Both are kept out of every text form of the value.
    """

    username: str = "git"
    password: str = field(default="", repr=False)
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What git is started with: options before its command, and variables. `proxy` judges its connections, if any."""

    variables: Mapping[str, str]
    options: tuple[str, ...] = ()
    proxy: FilteringProxy | None = None

    @property
    def refusal(self) -> str:
        """What was not connected to, for the operator; empty where everything was."""
        return "; ".join(refusal.text for refusal in self.proxy.refusals) if self.proxy else ""


class Routes:
    """Opens routes to remotes.

    Args:
        reach: Which hosts may be reached, and which of them at private addresses.
        environ: The environment of this process, which may name a proxy.
        known_hosts: Keys of ssh servers, as OpenSSH keeps them; need not be there where nobody uses ssh.
        scratch: Where a key lies while ssh reads it.
        resolver: Turns names into addresses; None: the system's.
    """

    def __init__(
        self,
        reach: RemoteHosts,
        *,
        environ: Mapping[str, str],
        known_hosts: Path,
        scratch: Path,
        resolver: Resolver | None = None,
    ) -> None:
        self._reach = reach
        named = {name: environ.get(name) or environ.get(name.upper(), "") for name in (*_PROXIES, "no_proxy")}
        self._proxies = {name: url for name, url in named.items() if url and name != "no_proxy"}
        self._direct = tuple(filter(None, (part.strip() for part in named["no_proxy"].lower().split(","))))
        self._known_hosts = known_hosts
        self._scratch = scratch
        self._resolver = resolver

    @asynccontextmanager
    async def open(self, remote: Remote, credential: Credential | None) -> AsyncGenerator[Route]:
        """The way to a remote, for as long as the context lasts.

        Raises PreconditionFailed (ssh without a key or known hosts), Unavailable, each with its field.
        """
        if remote.protocol == "ssh":
            async with self._ssh(remote, credential) as route:
                yield route
        elif self._is_proxied(remote):
            await self._judge_by_name(remote)
            # What redirects lead to would be for the operator's proxy to judge.
            yield Route(variables=self._proxies, options=("-c", "http.followRedirects=false"))
        else:
            proxy = FilteringProxy(self._reach, resolver=self._resolver)
            url = await proxy.start_on_loopback()
            try:
                yield Route(variables={**dict.fromkeys(_PROXIES, url), **_BASIC}, proxy=proxy)
            finally:
                await proxy.close()

    def _is_proxied(self, remote: Remote) -> bool:
        named = self._proxies.keys() & {f"{remote.protocol}_proxy", "all_proxy"}
        return bool(named) and not any(_is_below(remote, suffix) for suffix in self._direct)

    async def _judge_by_name(self, remote: Remote) -> None:
        """Refuse what this machine knows to lie inside; what it cannot resolve, the operator's proxy may."""
        private = self._reach.private(remote.host, remote.port)
        try:
            await judged(remote.host, remote.port, private=private, resolver=self._resolver)
        except PrivateHostError as error:
            raise out_of_reach(remote, str(error)) from None
        except UnknownHostError:
            return

    @asynccontextmanager
    async def _ssh(self, remote: Remote, credential: Credential | None) -> AsyncGenerator[Route]:
        if credential is None or not credential.key:
            raise PreconditionFailed(
                "there is no ssh key for this repository",
                field="repo.credential_ref",
                hint="an https URL; or the operator puts ssh-privatekey and hosts into the directory of credentials",
            )
        if not await asyncio.to_thread(self._known_hosts.is_file):
            raise PreconditionFailed(
                "the keys of ssh servers are not known here",
                field="repo.url",
                hint="an https URL; or the operator puts them into FLEET_GIT_KNOWN_HOSTS (ssh-keyscan, and compare)",
            )
        private = self._reach.private(remote.host, remote.port)
        try:
            addresses = await judged(remote.host, remote.port, private=private, resolver=self._resolver)
        except (PrivateHostError, UnknownHostError) as error:
            raise out_of_reach(remote, str(error)) from None
        with TemporaryDirectory(dir=self._scratch, prefix="ssh-") as directory:
            key = Path(directory, "key")
            await asyncio.to_thread(_write, key, credential.key)
            options = {
                **_SSH_OPTIONS,
                "IdentityFile": _quoted(key),
                "UserKnownHostsFile": _quoted(self._known_hosts),
                "HostName": addresses[0],
                "HostKeyAlias": remote.host if remote.port == _SSH_PORT else f"[{remote.host}]:{remote.port}",
            }
            option_words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
            # What is said first counts, whatever git goes on to say.
            command = shlex.join(["ssh", "-F", "/dev/null", *option_words, "-p", str(remote.port)])
            yield Route(variables={"GIT_SSH_COMMAND": command, "GIT_SSH_VARIANT": "ssh", "HOME": directory})


def out_of_reach(remote: Remote, reason: str) -> Unavailable:
    """The one answer to callers whose remote cannot be reached, for whatever reason; operators find it in the log.

    A caller who was told more could find out which hosts and ports there are inside.
    """
    _log.warning("repository.out_of_reach", host=remote.host, port=remote.port, reason=reason[:500])
    return Unavailable(
        "the address of repo.url cannot be reached from here",
        field="repo.url",
        hint="hosts at private addresses must be named in FLEET_GIT_PRIVATE_HOSTS by the operator",
    )


def _is_below(remote: Remote, suffix: str) -> bool:
    """Whether an entry of `no_proxy` means a remote."""
    name = suffix.lstrip("*").lstrip(".")
    places = (remote.host, f"{remote.host}:{remote.port}")
    return suffix == "*" or name in places or any(place.endswith(f".{name}") for place in places)


def _quoted(path: Path) -> str:
    """A path in ssh's configuration, where a % begins a token."""
    return '"' + str(path).replace("%", "%%") + '"'


def _write(path: Path, key: str) -> None:
    path.touch(mode=0o600, exist_ok=False)
    # OpenSSH takes no key without an end of its last line.
    path.write_text(key.rstrip("\n") + "\n")
