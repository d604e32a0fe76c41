"""The connections of the settings: names that callers may say, URLs that nobody gets to see."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

from swe_ai_fleet.tools.failure import ToolFailure


class Database(StrEnum):
    """The kinds of databases; each has a module of its own."""

    POSTGRESQL = "postgresql"
    REDIS = "redis"
    NEO4J = "neo4j"
    SQLITE = "sqlite"


_SCHEMES = {
    "postgresql": Database.POSTGRESQL,
    "postgres": Database.POSTGRESQL,
    "redis": Database.REDIS,
    "rediss": Database.REDIS,
    "unix": Database.REDIS,
    "valkey": Database.REDIS,
    "neo4j": Database.NEO4J,
    "neo4j+s": Database.NEO4J,
    "neo4j+ssc": Database.NEO4J,
    "bolt": Database.NEO4J,
    "bolt+s": Database.NEO4J,
    "bolt+ssc": Database.NEO4J,
    "sqlite": Database.SQLITE,
}
_SECRET_PARAMETERS = frozenset({"password", "sslpassword", "passwd"})


class Connections:
    """URLs by name. Raises ToolFailure that names the connections there are, never a URL."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)

    def kind(self, name: str) -> Database:
        """Which database a connection leads to."""
        found = _SCHEMES.get(_scheme(self._url(name)))
        if found is None:
            raise ToolFailure(f"the settings of the connection {name[:80]!r} name no database that is known here")
        return found

    def url(self, name: str, kind: Database) -> str:
        """The URL of a connection to a database of this kind."""
        found = self.kind(name)
        if found is not kind:
            raise ToolFailure(f"the connection {name[:80]!r} leads to {found}, not to {kind}")
        return self._url(name)

    def _url(self, name: str) -> str:
        url = self._urls.get(name)
        if url is None:
            names = ", ".join(sorted(self._urls)) or "none are configured"
            raise ToolFailure(f"there is no connection {name[:80]!r}; connections: {names}")
        return url


def _scheme(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def secret_values(connections: Mapping[str, str]) -> frozenset[str]:
    """What must be masked wherever it turns up: each URL and each password in it, as written and as decoded.

    Hand these to the mask of a pipeline that several tools share, so that no argument or output of theirs shows them.
    """
    values: set[str] = set()
    for url in connections.values():
        try:
            parts = urlsplit(url)
        except ValueError:
            values.add(url)
            continue
        userinfo, at, _ = parts.netloc.rpartition("@")
        password = userinfo.partition(":")[2]
        if _SCHEMES.get(parts.scheme) is not Database.SQLITE or at:
            values |= {url, userinfo}
        values |= {password, unquote(password)}
        values |= {value for name, value in parse_qsl(parts.query) if name in _SECRET_PARAMETERS}
    return frozenset(value for value in values if value)
