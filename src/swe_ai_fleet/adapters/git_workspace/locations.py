"""What a caller may name as a repository: the text taken apart and judged before git sees it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import SCRATCH, UPLOAD

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*::")
_SCP_LIKE = re.compile(r"(?:([A-Za-z0-9_.-]+)@)?([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([^:].*)")
_UPLOAD = re.compile(re.escape(UPLOAD) + r"[0-9a-f]{64}")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationPolicy:
    """Which locations are taken. Local paths must lie below one of the roots, and below `private` only among the jobs.

    In a root `{tenant}` stands for the caller's tenant. `hosts` are globs for the hosts of URLs; loopback and
    link-local addresses need a glob other than `*`.
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
            user, host, path = scp_like.groups()
            return self._remote(location, "ssh", host=host.strip("[]"), user=user or "", path=path)
        return self._path(location, tenant)

    def contains(self, path: Path, tenant: str = "") -> bool:
        """Whether a resolved path lies below an allowed root, and is none of the fleet's own."""
        for place in self.private:
            # A job's own clone lies among the jobs, and is its repository.
            if path.is_relative_to(place.resolve()) and not path.is_relative_to(place.resolve() / JOBS):
                return False
        return any(path.is_relative_to(root.resolve()) for root in self._roots(tenant))

    def _roots(self, tenant: str) -> list[Path]:
        return [
            Path(str(root).replace(TENANT, tenant)) for root in self.allowed_roots if tenant or TENANT not in str(root)
        ]

    def _path(self, text: str, tenant: str) -> Path:
        if not self.allow_local_paths:
            raise InvalidRequest(
                "paths on the server are not accepted here",
                field="repo.path",
                hint="give a URL, or upload it (fleet run --upload)",
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
            raise PreconditionFailed(f"{text[:256]} is no directory", field="repo.path")
        return resolved

    def _url(self, url: str, scheme: str) -> Remote:
        try:
            parts = urlsplit(url)
            host, password = parts.hostname or "", parts.password
            _ = parts.port
        except ValueError:
            raise InvalidRequest("not a valid URL", field="repo.url") from None
        if password is not None:
            raise InvalidRequest("a URL must not carry a password", field="repo.url", hint="name a credential instead")
        return self._remote(url, scheme, host=host, user=parts.username or "", path=parts.path)

    def _remote(self, url: str, protocol: str, *, host: str, user: str, path: str) -> Remote:
        if protocol not in self.protocols:
            allowed = ", ".join(self.protocols)
            raise InvalidRequest(f"{protocol} URLs are not accepted", field="repo.url", hint=f"accepted: {allowed}")
        if not host or host.startswith("-") or user.startswith("-") or path.lstrip("/").startswith("-"):
            raise InvalidRequest("the URL has a part that git would take for an option", field="repo.url")
        patterns = [pattern for pattern in self.hosts if pattern != "*" or not _is_inward(host)]
        if not any(fnmatchcase(host.lower(), pattern.lower()) for pattern in patterns):
            raise InvalidRequest(f"repositories on {host[:128]} are not accepted", field="repo.url")
        return Remote(url=url, protocol=protocol)


def _is_inward(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # 127.1, 0x7f000001, 2130706433: no DNS name ends in a number, but resolvers take these for addresses.
        last = host.rstrip(".").rsplit(".", 1)[-1]
        return last.isdigit() or last.lower().startswith("0x")
    return address.is_loopback or address.is_link_local or address.is_unspecified
