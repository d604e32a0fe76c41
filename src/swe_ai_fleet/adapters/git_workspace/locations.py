"""The locations of repositories that callers may name, checked before git gets them, and git's routes to remote ones.

Git resolves names itself, follows redirects, and lets ssh read files in a home. Therefore http goes through our own
proxy, which checks each connection, and ssh gets one checked address and one key.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import structlog

from swe_ai_fleet.domain.command import address_of
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import SCRATCH, UPLOAD
from swe_ai_fleet.sandbox.network import FilteringProxy, PrivateHostError, Resolver, UnknownHostError, is_public, lookup

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_SCP_LIKE = re.compile(r"(?:([A-Za-z0-9_.-]+)@)?([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([^:].*)")
_UPLOAD = re.compile(re.escape(UPLOAD) + r"[0-9a-f]{64}")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?|[0-9a-f:]+(?:[0-9]+\.){0,3}[0-9a-f]*")
_ENTRY = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]{1,5}))?")
_GLOB = re.compile(r"[*?\[]")
_PORTS = {"https": 443, "http": 80, "ssh": 22}
TENANT = "{tenant}"
JOBS = "jobs"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A repository behind a URL; `protocol` is git's transport, empty for an upload."""

    url: str
    protocol: str

    @property
    def upload(self) -> str:
        """The digest of the uploaded bundle; empty for a real URL."""
        return "" if self.protocol else self.url.removeprefix(UPLOAD)

    @property
    def host(self) -> str:
        """The host of the URL or of `user@host:path`, in lower case, without brackets or a final dot."""
        return host_of(self.url)

    @property
    def port(self) -> int:
        """The port of the URL, or its protocol's default."""
        return _host_port(self.url)[1] or _PORTS.get(self.protocol, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHosts:
    """Hosts of repositories, as globs, optionally with `:port`; one without wildcards may be at a private address."""

    patterns: tuple[str, ...] = ("*",)

    def covers(self, host: str, port: int) -> bool:
        """Whether repositories on a host are allowed."""
        return any(fnmatchcase(host, glob) and at in (None, port) for glob, at in map(_entry, self.patterns))

    def private(self, host: str, port: int) -> bool:
        """Whether the host may be at a private address."""
        entries = map(_entry, self.patterns)
        return any(host == name and at in (None, port) for name, at in entries if not _GLOB.search(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationPolicy:
    """The allowed locations. Local paths must be below one of the roots, and below `private` only in its jobs.

    In a root `{tenant}` stands for the caller's tenant. `hosts` are the allowed hosts of URLs, see `RemoteHosts`.
    """

    allowed_roots: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()
    allow_local_paths: bool = False
    protocols: tuple[str, ...] = ("https", "ssh")
    hosts: tuple[str, ...] = ("*",)

    def parse(self, location: str, tenant: str = "") -> Path | Remote:
        """A path, existing and resolved, or a URL. Raises InvalidRequest, PreconditionFailed with `field`."""
        if location == SCRATCH:
            raise PreconditionFailed("nothing can be delivered to a scratch repository", field="repo")
        if _UPLOAD.fullmatch(location):
            return Remote(url=location, protocol="")
        if location.startswith(UPLOAD):
            raise InvalidRequest("not the id of an upload", field="repo.upload_id", hint="as UploadRepository gave it")
        if not location or _CONTROL.search(location) or location.startswith("-"):
            raise InvalidRequest(f"{location[:64]!r} is not a repository", field="repo", hint="a path or an https URL")
        if _HELPER.match(location):
            raise InvalidRequest(f"{location[:64]!r}: transport helpers are not allowed", field="repo.url")
        scheme = _SCHEME.match(location)
        if scheme is not None:
            if scheme[1].lower() == "file":
                return self._path(location[7:], tenant)
            return self._url(location, scheme[1].lower())
        scp_like = _SCP_LIKE.fullmatch(location) if ":" in location.split("/", 1)[0] else None
        if scp_like is not None:
            user, _, path = scp_like.groups()
            return self._remote(Remote(url=location, protocol="ssh"), user=user or "", path=path)
        return self._path(location, tenant)

    def contains(self, path: Path, tenant: str = "") -> bool:
        """Whether a resolved path is below an allowed root, and not one of the fleet's own."""
        for directory in self.private:
            # A job's clone is there, and is the job's repository.
            if path.is_relative_to(directory.resolve()) and not path.is_relative_to(directory.resolve() / JOBS):
                return False
        return any(path.is_relative_to(root.resolve()) for root in self._roots(tenant))

    @property
    def reachable(self) -> RemoteHosts:
        """The hosts that git may connect to."""
        return RemoteHosts(patterns=self.hosts)

    def _roots(self, tenant: str) -> list[Path]:
        return [
            Path(str(root).replace(TENANT, tenant)) for root in self.allowed_roots if tenant or TENANT not in str(root)
        ]

    def _path(self, text: str, tenant: str) -> Path:
        if not self.allow_local_paths:
            raise InvalidRequest(
                "paths on the server are not accepted",
                field="repo.path",
                hint="use a URL, or upload the repository (fleet run --upload)",
            )
        path = Path(text)
        if not path.is_absolute():
            raise InvalidRequest(f"{text[:128]!r} is not an absolute path", field="repo.path")
        resolved = path.resolve()
        # Different messages for forbidden and missing paths show typing errors; the roots are no secret.
        if not self.contains(resolved, tenant):
            roots = ", ".join(map(str, self._roots(tenant))) or "none"
            raise InvalidRequest(
                f"{text[:256]} is outside the allowed roots",
                field="repo.path",
                hint=f"allowed: {roots}; or upload it (fleet run --upload)",
            )
        if not resolved.is_dir():
            raise PreconditionFailed(f"{text[:256]} is not a directory", field="repo.path")
        return resolved

    def _url(self, url: str, scheme: str) -> Remote:
        try:
            parts = urlsplit(url)
            password = parts.password
            _ = parts.hostname, parts.port
        except ValueError:
            raise InvalidRequest("not a valid URL", field="repo.url") from None
        if password is not None:
            raise InvalidRequest(
                "a URL must not carry a password", field="repo.url", hint="use a credential by name instead"
            )
        return self._remote(Remote(url=url, protocol=scheme), user=parts.username or "", path=parts.path)

    def _remote(self, remote: Remote, *, user: str, path: str) -> Remote:
        protocol, host, port = remote.protocol, remote.host, remote.port
        if protocol not in self.protocols:
            allowed = ", ".join(self.protocols)
            raise InvalidRequest(f"{protocol} URLs are not accepted", field="repo.url", hint=f"accepted: {allowed}")
        if not host or host.startswith("-") or user.startswith("-") or path.lstrip("/").startswith("-"):
            raise InvalidRequest("a part of the URL looks like an option of git", field="repo.url")
        if not _HOST.fullmatch(host):
            raise InvalidRequest(f"{host[:128]!r} is not a host", field="repo.url", hint="letters, digits, - and dots")
        address = _address(host)
        is_private = (address is not None and not is_public(address)) or f".{host}".endswith(".localhost")
        if not self.reachable.covers(host, port) or (is_private and not self.reachable.private(host, port)):
            raise InvalidRequest(
                f"repositories on {host[:128]} are not accepted",
                field="repo.url",
                hint="hosts at private addresses must be named in FLEET_GIT_PRIVATE_HOSTS by the operator",
            )
        return remote


def host_of(url: str) -> str:
    """The host of a URL, or of git's short form `user@host:path`. Raises ValueError for a malformed URL."""
    return _host_port(url)[0]


def _host_port(url: str) -> tuple[str, int]:
    """The host and the port of a URL for git; the port is 0 if it has none."""
    if _SCHEME.match(url):
        parts = urlsplit(url)
        return (parts.hostname or "").rstrip("."), parts.port or 0
    match = _SCP_LIKE.fullmatch(url)
    return (match[2].strip("[]").lower().rstrip(".") if match else ""), 0


def _entry(text: str) -> tuple[str, int | None]:
    """The host of a policy's entry, and its port if it has one."""
    text = text.strip().lower()
    match = _ENTRY.fullmatch(text)
    if match is None:
        return text, None
    return match["name"].strip("[]").rstrip("."), int(match["port"]) if match["port"] else None


def _address(host: str) -> str | None:
    """The address that a host is, in any notation that resolvers accept; None for a name."""
    if (address := address_of(host)) is not None:
        return str(address)
    try:
        # 127.1, 0x7f000001, 2130706433, 0177.0.0.1
        return str(IPv4Address(socket.inet_aton(host)))
    except OSError:
        return None


_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_BASIC = {"GIT_HTTP_PROXY_AUTHMETHOD": "basic"}
_SSH_PORT = 22
_SSH_OPTIONS = {
    # Only the one key: no ssh agent, no home, no configuration of this machine.
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
    """The credential of a remote repository: a password for http, a private key in OpenSSH's format for ssh.

    Neither is part of the value's `repr`.
    """

    username: str = "git"
    password: str = field(default="", repr=False)
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Git's options and variables for reaching a remote. `proxy`, if any, checks its connections."""

    variables: Mapping[str, str]
    options: tuple[str, ...] = ()
    proxy: FilteringProxy | None = None

    @property
    def refusal(self) -> str:
        """The refused connections, for the operator; empty without any."""
        return "; ".join(refusal.text for refusal in self.proxy.refusals) if self.proxy else ""


class RemoteRoutes:
    """Opens routes to remotes.

    Args:
        reachable: The hosts that may be reached, and those among them at private addresses.
        environ: The environment of this process, which may name a proxy.
        known_hosts: OpenSSH's file of servers' keys; only needed for ssh.
        resolver: Resolves names; None: the system's resolver.
    """

    def __init__(
        self,
        reachable: RemoteHosts,
        *,
        environ: Mapping[str, str],
        known_hosts: Path,
        scratch: Path,
        resolver: Resolver | None = None,
    ) -> None:
        self._reachable = reachable
        configured = {name: environ.get(name) or environ.get(name.upper(), "") for name in (*_PROXIES, "no_proxy")}
        self._proxies = {name: url for name, url in configured.items() if url and name != "no_proxy"}
        self._direct = tuple(filter(None, (part.strip() for part in configured["no_proxy"].lower().split(","))))
        self._known_hosts = known_hosts
        self._scratch = scratch
        self._resolver = resolver

    @asynccontextmanager
    async def open(self, remote: Remote, credential: Credential | None) -> AsyncGenerator[Route]:
        """A route to a remote, until the context ends.

        Raises PreconditionFailed (ssh without a key or known hosts), Unavailable, each with its field.
        """
        proxies = self._proxies.keys() & {f"{remote.protocol}_proxy", "all_proxy"}
        if remote.protocol == "ssh":
            async with self._ssh(remote, credential) as route:
                yield route
        elif proxies and not any(_is_below(remote, suffix) for suffix in self._direct):
            # Private addresses are refused; names that this machine cannot resolve are left to the operator's proxy.
            with suppress(UnknownHostError):
                await self._lookup(remote)
            # Only the operator's proxy could check the targets of redirects.
            yield Route(variables=self._proxies, options=("-c", "http.followRedirects=false"))
        else:
            proxy = FilteringProxy(self._reachable, resolver=self._resolver)
            url = await proxy.start_on_loopback()
            try:
                yield Route(variables={**dict.fromkeys(_PROXIES, url), **_BASIC}, proxy=proxy)
            finally:
                await proxy.close()

    async def _lookup(self, remote: Remote) -> tuple[str, ...]:
        """The addresses of a remote. Raises UnknownHostError, Unavailable where they are not allowed."""
        private = self._reachable.private(remote.host, remote.port)
        try:
            return await lookup(remote.host, remote.port, private=private, resolver=self._resolver)
        except PrivateHostError as error:
            raise out_of_reach(remote, str(error)) from None

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
        try:
            addresses = await self._lookup(remote)
        except UnknownHostError as error:
            raise out_of_reach(remote, str(error)) from None
        with TemporaryDirectory(dir=self._scratch, prefix="ssh-") as directory:
            key = Path(directory, "key")
            await asyncio.to_thread(_write_key, key, credential.key)
            options = {
                **_SSH_OPTIONS,
                "IdentityFile": _quoted(key),
                "UserKnownHostsFile": _quoted(self._known_hosts),
                "HostName": addresses[0],
                "HostKeyAlias": remote.host if remote.port == _SSH_PORT else f"[{remote.host}]:{remote.port}",
            }
            option_words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
            # The first value of an option counts, whatever git adds.
            command = shlex.join(["ssh", "-F", "/dev/null", *option_words, "-p", str(remote.port)])
            yield Route(variables={"GIT_SSH_COMMAND": command, "GIT_SSH_VARIANT": "ssh", "HOME": directory})


def out_of_reach(remote: Remote, reason: str) -> Unavailable:
    """The fault for a remote that cannot be reached, without the reason, which is logged for operators.

    With the reason, a caller could scan private hosts and ports.
    """
    _log.warning("repository.out_of_reach", host=remote.host, port=remote.port, reason=reason[:500])
    return Unavailable(
        "the address of repo.url cannot be reached from here",
        field="repo.url",
        hint="hosts at private addresses must be named in FLEET_GIT_PRIVATE_HOSTS by the operator",
    )


def _is_below(remote: Remote, suffix: str) -> bool:
    """Whether an entry of `no_proxy` applies to a remote."""
    name = suffix.lstrip("*").lstrip(".")
    names = (remote.host, f"{remote.host}:{remote.port}")
    return suffix == "*" or name in names or any(host.endswith(f".{name}") for host in names)


def _quoted(path: Path) -> str:
    """A path quoted for ssh's configuration, where % begins a token."""
    return '"' + str(path).replace("%", "%%") + '"'


def _write_key(path: Path, key: str) -> None:
    path.touch(mode=0o600, exist_ok=False)
    # OpenSSH requires a newline at the end of a key.
    path.write_text(key.rstrip("\n") + "\n")
