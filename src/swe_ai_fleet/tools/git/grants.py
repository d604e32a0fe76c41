"""Which remote repositories an agent may reach, and what it may do there."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.http.transport import parse_url
from swe_ai_fleet.tools.secrets import MASK

ANYTHING_BELOW = "/*"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_BRANCH = re.compile(r"(?![-/])[^\x00-\x20\x7f~^:?*\[\\]{1,250}(?<![/.])")
_TRANSPORT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SEGMENT = re.compile(r"(?!\.+(?:/|$))[A-Za-z0-9._~+@-]+")
_USER_INFO = re.compile(r"(:/*).*@", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteGrant:
    """One remote repository, or all below one path of a server, that agents may reach.

    Args:
        name: What agents call it; its branches are fetched to `refs/remotes/<name>/`.
        url: `https://host/path`, exactly; one that ends in `/*` grants every repository below it, by its URL.
        push: Globs of the branches that may be pushed; empty means none.
        protected: Globs of branches that a glob of `push` does not open, nor the server's default branch: only their
            very name does.
        username: Sent with `secret`; many servers take any.
        secret: Password or token. It stays in this process: no command, file or result holds it.
        private: Whether its host may have private addresses.
        insecure: Whether the URL may be http; everything, the secret too, then travels in clear text.

    Raises InvalidRequest with the field that is wrong.
    """

    name: str
    url: str
    push: tuple[str, ...] = ()
    protected: tuple[str, ...] = ("main", "master")
    username: str = "git"
    secret: str = field(default="", repr=False)
    private: bool = False
    insecure: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name!r} is not a valid name for a remote; use letters, digits, - and _", field="name"
            )
        if ":" in self.username or not (self.username + self.secret).isprintable():
            raise InvalidRequest(f"the credential of the remote {self.name} holds characters it can't", field="secret")
        try:
            self._checked(self.url.removesuffix(ANYTHING_BELOW))
        except ToolFailure as error:
            raise InvalidRequest(f"the URL of the remote {self.name}: {error.message}", field="url") from None

    @property
    def is_pattern(self) -> bool:
        return self.url.endswith(ANYTHING_BELOW)

    @property
    def authorization(self) -> str:
        """The value of the Authorization header, empty without a secret."""
        if not self.secret:
            return ""
        return f"Basic {base64.b64encode(f'{self.username}:{self.secret}'.encode()).decode()}"

    def covers(self, url: str) -> bool:
        """Whether it grants the repository at a URL, which was checked."""
        granted = self._checked(self.url.removesuffix(ANYTHING_BELOW))
        return url.startswith(f"{granted}/") if self.is_pattern else _plain(url) == _plain(granted)

    def may_push(self, branch: str, default_branch: str) -> bool:
        """Whether a branch may be pushed. The server's default branch and protected ones must be named exactly."""
        if branch in self.push:
            return True
        guarded = branch == default_branch or any(fnmatchcase(branch, glob) for glob in self.protected)
        return not guarded and any(fnmatchcase(branch, glob) for glob in self.push)

    def _checked(self, url: str) -> str:
        checked = checked_url(url)
        if checked.startswith("http:") and not self.insecure:
            raise ToolRefusal("http is not granted; use https")
        return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One repository that a grant allows."""

    grant: RemoteGrant
    url: str

    @property
    def name(self) -> str:
        return self.grant.name


def find_target(grants: tuple[RemoteGrant, ...], remote: str) -> Target:
    """What a remote's name or URL stands for. Raises ToolRefusal, saying what is granted."""
    granted = ", ".join(f"{grant.name} ({grant.url})" for grant in grants) or "none"
    for grant in grants:
        if grant.name == remote and not grant.is_pattern:
            return Target(grant=grant, url=checked_url(grant.url))
    if not _TRANSPORT.match(remote):
        raise ToolRefusal(f"{shown_url(remote)!r} is not a granted remote; allowed are: {granted}")
    url = checked_url(remote)
    for grant in grants:
        if grant.covers(url):
            return Target(grant=grant, url=url)
    raise ToolRefusal(f"{url[:200]!r} is not granted; allowed are: {granted}")


def checked_url(text: str) -> str:
    """An http or https URL of a repository in its one spelling. Raises ToolRefusal for whatever else git takes."""
    if _TRANSPORT.match(text) and not text.lower().startswith(("http://", "https://")):
        kind = text.partition(":")[0][:20]
        raise ToolRefusal(f"the transport {kind!r} is not allowed; remotes are reached by https only")
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise ToolRefusal("a remote's URL must not hold a user name or password; credentials belong to the grant")
    try:
        url = str(parse_url(text)).rstrip("/")
    except ToolFailure as error:
        raise ToolRefusal(error.message) from None
    path = url.partition("://")[2].partition("/")[2]
    if "?" in text or "#" in text or not all(_SEGMENT.fullmatch(part) for part in path.split("/")):
        raise ToolRefusal("a remote's URL is https://host/path with plain path segments, without '..' or a query")
    return url


def checked_branch(text: str) -> str:
    """The name of a branch itself. Raises ToolRefusal for options and for what git could take for anything else."""
    broken = ("..", "//", "@{", ".lock/", "/.")
    if (
        not _BRANCH.fullmatch(text)
        or text in ("@", "HEAD")
        or text.startswith((".", "refs/"))
        or text.endswith(".lock")
        or any(part in text for part in broken)
    ):
        raise ToolRefusal(f"{text[:80]!r} is not a branch name; give its short name, such as main or fix/login")
    return text


def shown_url(text: str) -> str:
    """What a model gave as a URL, as errors and the audit may show it."""
    return _USER_INFO.sub(rf"\1{MASK}@", text)[:200]


def _plain(url: str) -> str:
    return url.removesuffix(".git")
