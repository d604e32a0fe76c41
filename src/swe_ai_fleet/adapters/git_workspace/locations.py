"""What a caller may name as a repository: the text taken apart and judged before git sees it."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.domain.command import address_of
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import SCRATCH, UPLOAD
from swe_ai_fleet.sandbox.addresses import is_public

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_SCP_LIKE = re.compile(r"(?:([A-Za-z0-9_.-]+)@)?([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([^:].*)")
_UPLOAD = re.compile(re.escape(UPLOAD) + r"[0-9a-f]{64}")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?|[0-9a-f:]+(?:[0-9]+\.){0,3}[0-9a-f]*")
_ENTRY = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]{1,5}))?|(?P<bare>.*)")
_GLOB = re.compile(r"[*?\[]")
_PORTS = {"https": 443, "http": 80, "ssh": 22}
TENANT = "{tenant}"
JOBS = "jobs"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A repository behind a URL; `protocol` is the transport that git will need, none for what was uploaded."""

    url: str
    protocol: str

    @property
    def upload(self) -> str:
        """The digest of the bundle that was uploaded; empty where it is a real URL."""
        return "" if self.protocol else self.url.removeprefix(UPLOAD)

    @property
    def host(self) -> str:
        """The host of the URL or of `user@host:path`: in lower case, without brackets or a dot at its end."""
        return _place(self.url)[0]

    @property
    def port(self) -> int:
        """The port of the URL, said or not."""
        return _place(self.url)[1] or _PORTS.get(self.protocol, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHosts:
    """Hosts of repositories, as globs, optionally with `:port`; one without wildcards may be at a private address."""

    patterns: tuple[str, ...] = ("*",)

    def covers(self, host: str, port: int) -> bool:
        """Whether repositories on a host may be named."""
        return any(fnmatchcase(host, glob) and at in (None, port) for glob, at in map(_entry, self.patterns))

    def private(self, host: str, port: int) -> bool:
        """Whether the host may be at a private address."""
        entries = map(_entry, self.patterns)
        return any(host == name and at in (None, port) for name, at in entries if not _GLOB.search(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationPolicy:
    """Which locations are taken. Local paths must lie below one of the roots, and below `private` only among the jobs.

    In a root `{tenant}` stands for the caller's tenant. `hosts` are those of URLs, see `RemoteHosts`.
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
        """Whether a resolved path lies below an allowed root, and is none of the fleet's own."""
        for place in self.private:
            # A job's own clone lies among the jobs, and is its repository.
            if path.is_relative_to(place.resolve()) and not path.is_relative_to(place.resolve() / JOBS):
                return False
        return any(path.is_relative_to(root.resolve()) for root in self._roots(tenant))

    @property
    def reach(self) -> RemoteHosts:
        """Which hosts git may be led to."""
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
        # The same answer for a forbidden and a missing path would hide a typing error, and the roots are no secret.
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
        inward = (address is not None and not is_public(address)) or _is_local_name(host)
        if not self.reach.covers(host, port) or (inward and not self.reach.private(host, port)):
            raise InvalidRequest(
                f"repositories on {host[:128]} are not accepted",
                field="repo.url",
                hint="hosts at private addresses must be named in FLEET_GIT_PRIVATE_HOSTS by the operator",
            )
        return remote


def _place(url: str) -> tuple[str, int]:
    """The host and the port of a URL as git takes it, 0 where it says none."""
    if _SCHEME.match(url):
        parts = urlsplit(url)
        return (parts.hostname or "").rstrip("."), parts.port or 0
    match = _SCP_LIKE.fullmatch(url)
    return (match[2].strip("[]").lower().rstrip(".") if match else ""), 0


def _entry(text: str) -> tuple[str, int | None]:
    """A host of a policy and the port it names, if it names one."""
    match = _ENTRY.fullmatch(text.strip().lower())
    if match is None or match["bare"] is not None:
        return text.strip().lower(), None
    return match["name"].strip("[]").rstrip("."), int(match["port"]) if match["port"] else None


def _is_local_name(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost")


def _address(host: str) -> str | None:
    """The address that a host is, in any spelling that resolvers take for one; None where it is a name."""
    if (address := address_of(host)) is not None:
        return str(address)
    try:
        # 127.1, 0x7f000001, 2130706433, 0177.0.0.1
        return str(IPv4Address(socket.inet_aton(host)))
    except OSError:
        return None
