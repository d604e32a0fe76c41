"""Where a command may write, and what it should not read."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from swe_ai_fleet.tools.shell_risk.words import Word

_SECRET = re.compile(
    r"(^|/)(\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.netrc|\.git-credentials|\.env(\.|$)|id_[a-z0-9]+$|credentials$)"
    r"|^/etc/(shadow|gshadow|sudoers)|^/proc/|^/sys/|^/root"
)
_WORKSPACE = ("/workspace", "/tmp", "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd")  # noqa: S108 - of the sandbox
_NETWORK = re.compile(r"/(dev|inet[46]?)/+(tcp|udp)/")


def reads_secrets(path: str) -> bool:
    """Whether what a path names may be secret."""
    return bool(_SECRET.search(path))


def opens_network(path: str) -> bool:
    """Whether a path is one that shells and awk open a connection for."""
    return bool(_NETWORK.search(path))


def path_risk(path: str, *, writes: bool) -> str:
    """Why a path should not be touched; empty for one of the workspace."""
    if _SECRET.search(path):
        return "exfiltration: it touches what may be secret"
    normal = posixpath.normpath(path)
    parts = normal.split("/")
    inside = not normal.startswith(("/", "~", "..")) or any(
        normal == root or normal.startswith(root + "/") for root in _WORKSPACE
    )
    if writes and (".git" in parts or (normal.startswith("/") and any(part.startswith(".") for part in parts[3:]))):
        return "privilege: it writes into git's own files, or into a program's settings"
    if writes and ".bin" in parts:
        return "privilege: it writes where programs are looked for"
    return "" if inside else "destructive: it writes outside the workspace"


def write_risk(word: Word) -> Iterator[str]:
    """Why a command should not write to what a word names."""
    path = word.path
    if path is None:
        yield "unknown: where it writes to is computed"
    elif risk := path_risk(path, writes=True):
        yield risk
