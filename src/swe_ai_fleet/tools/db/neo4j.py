"""Neo4j: one Cypher statement in one transaction of a session whose access mode the server enforces."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, LiteralString, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from swe_ai_fleet.tools.db.results import Collector, Rows
from swe_ai_fleet.tools.failure import ToolFailure, ToolRefusal

if TYPE_CHECKING:
    from neo4j import AsyncTransaction

_CONNECT_SECONDS = 10.0
_FETCH_ROWS = 100
REFUSED = re.compile(
    r"(load\s+csv|\b(?:apoc|dbms)\s*\.|\bin\s+transactions\b|\bterminate\s+transactions?\b)", re.IGNORECASE
)
"""Refused in every mode: reading files and URLs from the server, its procedures, transactions of its own."""

_FORBIDDEN_CODES = ("Statement.AccessMode", "Security.Forbidden")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SCHEMA: tuple[tuple[str, LiteralString], ...] = (
    ("label", "CALL db.labels()"),
    ("relationship type", "CALL db.relationshipTypes()"),
    ("property", "CALL db.propertyKeys()"),
)


async def query(
    url: str, cypher: str, params: Mapping[str, object], *, read_only: bool, max_rows: int, timeout_seconds: float
) -> Rows:
    """Run one statement with `$name` as parameters. Raises ToolFailure, TimeoutError."""
    check(cypher)
    async with _transaction(url, read_only=read_only, timeout_seconds=timeout_seconds) as transaction:
        result = await transaction.run(cast("LiteralString", cypher), dict(params))
        collector = Collector(result.keys(), max_rows)
        async for record in result:
            if not collector.add(record.values()):
                break
        summary = await result.consume()
        if not read_only:
            await transaction.commit()
    counters = {name: value for name, value in vars(summary.counters).items() if isinstance(value, int) and value}
    said = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in counters.items())
    return collector.rows(said, {"counters": counters})


async def describe(url: str, *, max_rows: int, timeout_seconds: float) -> Rows:
    """Labels, relationship types and property keys."""
    collector = Collector(("kind", "name"), max_rows)
    async with _transaction(url, read_only=True, timeout_seconds=timeout_seconds) as transaction:
        for kind, statement in _SCHEMA:
            async for record in await transaction.run(statement):
                collector.add((kind, record[0]))
    return collector.rows()


async def explain(url: str, cypher: str, *, max_rows: int, timeout_seconds: float) -> Rows:
    """The plan of a statement, which is not run."""
    check(cypher)
    if re.match(r"(explain|profile)\b", _COMMENT.sub(" ", cypher).strip(), re.IGNORECASE):
        raise ToolFailure("give the bare statement, without EXPLAIN or PROFILE")
    async with _transaction(url, read_only=True, timeout_seconds=timeout_seconds) as transaction:
        summary = await (await transaction.run(cast("LiteralString", f"EXPLAIN {cypher}"))).consume()
    collector = Collector(("plan",), max_rows)
    pending = [(0, cast("Mapping[str, object]", summary.plan or {}))]  # pyright: ignore[reportUnknownMemberType]
    while pending:
        depth, plan = pending.pop()
        collector.add(("  " * depth + str(plan.get("operatorType", "?")),))
        children = cast("list[Mapping[str, object]]", plan.get("children") or [])
        pending += [(depth + 1, child) for child in reversed(children)]
    return collector.rows()


def check(cypher: str) -> None:
    """Refuse what the list above names, comments within it or not. Raises ToolFailure."""
    if not cypher.strip():
        raise ToolFailure("the statement is empty")
    for text in (cypher, _COMMENT.sub(" ", cypher).replace("`", "")):
        if named := REFUSED.search(text):
            raise ToolRefusal(f"{named[1]} is refused here: it reaches files, other servers or other transactions")


def split(url: str) -> tuple[str, tuple[str, str] | None, str | None]:
    """(URL without credentials, user and password, database) of a connection's URL; the driver takes them apart."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    auth = (unquote(user), unquote(password)) if userinfo else None
    return urlunsplit((parts.scheme, host, "", parts.query, "")), auth, parts.path.strip("/") or None


@asynccontextmanager
async def _transaction(url: str, *, read_only: bool, timeout_seconds: float) -> AsyncGenerator[AsyncTransaction]:
    """A transaction on a driver of its own; leaving it without a commit rolls it back."""
    try:
        import neo4j
        from neo4j.exceptions import AuthError, ClientError, DriverError, Neo4jError
    except ImportError:
        raise ToolFailure("Neo4j needs its driver: pip install 'swe-ai-fleet[db]'") from None
    address, auth, database = split(url)
    mode = neo4j.READ_ACCESS if read_only else neo4j.WRITE_ACCESS
    try:
        async with (
            neo4j.AsyncGraphDatabase.driver(  # pyright: ignore[reportUnknownMemberType]
                address, auth=auth, connection_timeout=_CONNECT_SECONDS, max_transaction_retry_time=0
            ) as driver,
            driver.session(  # pyright: ignore[reportUnknownMemberType]
                default_access_mode=mode, database=database, fetch_size=_FETCH_ROWS
            ) as session,
            await session.begin_transaction(timeout=timeout_seconds) as transaction,
        ):
            yield transaction
    except AuthError:
        raise ToolFailure("the connection to Neo4j cannot be opened: its credentials are refused") from None
    except ClientError as error:
        if "TransactionTimedOut" in (error.code or ""):
            raise TimeoutError from None
        kind = ToolRefusal if (error.code or "").endswith(_FORBIDDEN_CODES) else ToolFailure
        raise kind(f"Neo4j: {error.message}") from None
    except (DriverError, Neo4jError) as error:
        raise ToolFailure(f"Neo4j: the connection failed: {type(error).__name__}") from None
