"""Files as nodes of the graph: of one repository each."""

from __future__ import annotations

import re

_PARTS = 2
_PORT = re.compile(r":[0-9]{1,5}(?=/)")


def file_node(repository: str, path: str) -> str:
    """The node of a file: `file:<repository>/<path>`, without a repository `file:<path>`."""
    name = repository_name(repository)
    return f"file:{name}/{path}" if name else f"file:{path}"


def repository_name(location: str) -> str:
    """What tells a repository from others: the last two parts of its location, as in `acme/app`; empty for none.

    The same for its clones over HTTPS and SSH, and for a mirror of that name.
    """
    place = _PORT.sub("", location.partition("://")[2] or location).rstrip("/").removesuffix(".git")
    parts = [part for part in re.split(r"[/:\\]", place) if part.strip(". ")]
    return "/".join(parts[-_PARTS:])
