"""Neo4j: one Cypher statement in one transaction of a session whose access mode the server enforces."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, LiteralString, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from swe_ai_fleet.domain.json_values import is_list, is_object, mappings
from swe_ai_fleet.extensions.databases.results import Collector, QueryBounds, Rows
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

if TYPE_CHECKING:
    from neo4j import AsyncTransaction
    from neo4j.exceptions import Neo4jError
    from neo4j.graph import Path

_CONNECT_SECONDS = 10.0
_FETCH_ROWS = 100
REFUSED = re.compile(
    r"(load\s+csv|\b(?:apoc|dbms|genai)\s*\.|\bin\s+transactions\b|\bterminate\s+transactions?\b)", re.IGNORECASE
)
"""Refused in every mode: reading files and URLs on the server, its procedures, and separate transactions."""

_FORBIDDEN_CODES = ("Statement.AccessMode", "Security.Forbidden")
_APART = re.compile(
    r"""//[^\n\r]*|/\*.*?(?:\*/|\Z)|'(?:\\.|[^'\\])*+(?:'|\\?\Z)|"(?:\\.|[^"\\])*+(?:"|\\?\Z)|`(?:[^`]|``)*+(?:`|\Z)""",
    re.DOTALL,
)
"""Comments, strings and quoted names; an unclosed one matches to the end, so that the search is linear."""

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_INTEGERS = range(-(2**63), 2**63)
_UNREADABLE = (LookupError, TypeError, AttributeError, AssertionError, ValueError, struct.error, RuntimeError)
"""The exceptions that the driver raises if a server violates the protocol."""

_SCHEMA: tuple[tuple[str, LiteralString], ...] = (
    ("label", "CALL db.labels()"),
    ("relationship type", "CALL db.relationshipTypes()"),
    ("property", "CALL db.propertyKeys()"),
)


async def query(url: str, cypher: str, params: Mapping[str, object], bounds: QueryBounds) -> Rows:
    """Run one statement with `$name` as parameters. Raises ToolFailure, TimeoutError."""
    check(cypher)
    _check_values(params)
    async with _transaction(url, bounds) as transaction:
        result = await transaction.run(cast("LiteralString", cypher), dict(params))
        collector = Collector(result.keys(), bounds.max_rows)
        async for record in result:
            if not collector.add([_readable(value) for value in record.values()]):
                if bounds.read_only:
                    # A rollback would wait until the statement ends.
                    transaction.cancel()
                    return collector.rows("", {"counters": {}})
                break
        summary = await result.consume()
        if not bounds.read_only:
            await transaction.commit()
    counters = {name: value for name, value in vars(summary.counters).items() if isinstance(value, int) and value}
    counter_text = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in counters.items())
    return collector.rows(counter_text, {"counters": counters})


async def describe(url: str, bounds: QueryBounds) -> Rows:
    collector = Collector(("kind", "name"), bounds.max_rows)
    async with _transaction(url, bounds) as transaction:
        for kind, statement in _SCHEMA:
            async for record in await transaction.run(statement):
                if not collector.add((kind, record[0])):
                    transaction.cancel()
                    return collector.rows()
    return collector.rows()


async def explain(url: str, cypher: str, bounds: QueryBounds) -> Rows:
    """The plan of a statement, without running it."""
    check(cypher)
    if re.match(r"(explain|profile)\b", _bare(cypher).strip(), re.IGNORECASE):
        raise ToolFailure("give the bare statement, without EXPLAIN or PROFILE")
    async with _transaction(url, bounds) as transaction:
        summary = await (await transaction.run(cast("LiteralString", f"EXPLAIN {cypher}"))).consume()
    collector = Collector(("plan",), bounds.max_rows)
    pending = [(0, cast("Mapping[str, object]", summary.plan or {}))]
    while pending:
        depth, plan = pending.pop()
        if not collector.add(("  " * depth + str(plan.get("operatorType", "?")),)):
            break
        pending += [(depth + 1, child) for child in reversed(mappings(plan.get("children")))]
    return collector.rows()


def check(cypher: str) -> None:
    """Refuse what `REFUSED` names, even with comments inside, and a second statement. Raises ToolFailure."""
    if not cypher.strip():
        raise ToolFailure("the statement is empty")
    # Neo4j decodes \uXXXX anywhere in a statement, also in words and at the ends of strings.
    for text in (cypher, _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), cypher)):
        bare = _bare(text)
        for view in (text, bare):
            if named := REFUSED.search(view.replace("\u180e", " ")):
                raise ToolRefusal(f"{named[1]} is refused here: it reaches files, other servers or other transactions")
        if ";" in bare.rstrip("; \t\r\n"):
            raise ToolRefusal("a second statement is refused here: each call is one, in a transaction of its own")


def split(url: str) -> tuple[str, tuple[str, str] | None, str | None]:
    """(URL without credentials, user and password, database) of a connection's URL, as the driver takes them."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    auth = (unquote(user), unquote(password)) if userinfo else None
    return urlunsplit((parts.scheme, host, "", parts.query, "")), auth, parts.path.strip("/") or None


def _bare(cypher: str) -> str:
    """The statement without comments and strings, its quoted names without the quotes."""

    def kept(part: re.Match[str]) -> str:
        if part[0].startswith("`"):
            return part[0].strip("`").replace(";", "")
        return " " if part[0].startswith("/") else "''"

    return _APART.sub(kept, cypher)


def _check_values(params: Mapping[str, object]) -> None:
    for name, value in params.items():
        for part in value if is_list(value) else [value]:
            if isinstance(part, int) and part not in _INTEGERS:
                raise ToolFailure(f"the parameter {name[:80]!r} does not fit into 64 bits: give it as a string")


def _readable(value: object, *, within: bool = False) -> object:
    """Nodes, relationships and paths as Cypher draws them; `within` another value, strings are quoted."""
    from neo4j.graph import Node, Path, Relationship

    match value:
        case Node():
            labels = "".join(f":{label}" for label in sorted(value.labels))
            return f"({' '.join(filter(None, (labels, _properties(value))))})"
        case Relationship():
            return f"[{' '.join(filter(None, (f':{value.type}', _properties(value))))}]"
        case Path():
            return "".join(_path_lines(value))
        case _ if is_object(value):
            return "{" + ", ".join(f"{name}: {_readable(part, within=True)}" for name, part in value.items()) + "}"
        case _ if is_list(value):
            return f"[{', '.join(str(_readable(part, within=True)) for part in value)}]"
        case str() if within:
            return json.dumps(value, ensure_ascii=False)
        case None if within:
            return "NULL"
        case _:
            return value


def _properties(entity: Mapping[str, object]) -> str:
    return str(_readable(dict(entity.items()))) if len(entity) else ""


def _path_lines(path: Path) -> Iterator[str]:
    yield str(_readable(path.nodes[0]))
    for start, relationship, end in zip(path.nodes, path.relationships, path.nodes[1:], strict=False):
        forward = relationship.start_node == start
        yield f"{'' if forward else '<'}-{_readable(relationship)}-{'>' if forward else ''}{_readable(end)}"


@asynccontextmanager
async def _transaction(url: str, bounds: QueryBounds) -> AsyncGenerator[AsyncTransaction]:
    """A transaction with its own driver; rolled back at its end if read-only, and after an exception."""
    try:
        import neo4j
        from neo4j._exceptions import BoltError  # raised for servers that speak no Bolt; not public
        from neo4j.exceptions import DriverError, IncompleteCommit, Neo4jError
    except ImportError:
        raise ToolFailure("Neo4j needs its driver: pip install 'swe-ai-fleet[db]'") from None
    address, auth, database = split(url)
    mode = neo4j.READ_ACCESS if bounds.read_only else neo4j.WRITE_ACCESS
    try:
        async with (
            neo4j.AsyncGraphDatabase.driver(
                address, auth=auth, connection_timeout=_CONNECT_SECONDS, max_transaction_retry_time=0
            ) as driver,
            driver.session(
                default_access_mode=mode, database=database, fetch_size=min(_FETCH_ROWS, bounds.max_rows + 1)
            ) as session,
            await session.begin_transaction(timeout=bounds.timeout_seconds) as transaction,
        ):
            try:
                yield transaction
                if bounds.read_only and not transaction.closed():
                    # By default, the driver commits when the block ends without an exception.
                    await transaction.rollback()
            except (BoltError, *_UNREADABLE):
                # The driver's own rollback would wait for the rest of that answer, in a loop that never yields.
                transaction.cancel()
                raise
    except Neo4jError as error:
        raise _failure_of(error) from None
    except IncompleteCommit:
        raise ToolFailure("Neo4j: the connection failed at the commit: check whether it happened") from None
    except DriverError as error:
        raise ToolFailure(f"Neo4j: the connection failed: {type(error).__name__}") from None
    except (BoltError, *_UNREADABLE):
        raise ToolFailure("Neo4j: the connection failed: the server's answer cannot be read") from None


def _failure_of(error: Neo4jError) -> Exception:
    from neo4j.exceptions import AuthError

    code = error.code or ""
    if isinstance(error, AuthError) or "Security.AuthenticationRateLimit" in code:
        return ToolFailure("the connection to Neo4j cannot be opened: its credentials are refused")
    if "TransactionTimedOut" in code:
        return TimeoutError()
    return (ToolRefusal if code.endswith(_FORBIDDEN_CODES) else ToolFailure)(f"Neo4j: {error.message}")
