"""The database tool and Neo4j's own driver against a double that speaks Neo4j's wire protocol.

The double answers from a script and is no Neo4j: what the tool and the driver send, and what they make of each answer,
is tested here; whether Neo4j holds to its access modes and limits is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

import pytest

from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.tools import DatabaseTool, Pipeline
from swe_ai_fleet.tools.audit import AuditTrail
from tests.extensions.databases.bolt_server import (
    PASSWORD,
    QUOTED,
    Answer,
    BoltServer,
    bolt_server,
)
from tests.tables import table
from tests.tool_doubles import ListJournal

READING = ["BEGIN", "RUN", "PULL", "ROLLBACK"]
ONE = Answer(fields=("n",), records=lambda: [[1]])


@pytest.fixture
async def server() -> AsyncIterator[BoltServer]:
    async with bolt_server() as running:
        yield running


@pytest.fixture
def journal() -> ListJournal:
    return ListJournal()


@pytest.fixture
def tool(server: BoltServer, journal: ListJournal) -> DatabaseTool:
    """Connections `graph` (for reading) and `notes` (writable)."""
    urls = {"graph": server.url(), "notes": server.url()}
    pipeline = Pipeline(trail=AuditTrail(journal=journal))
    return DatabaseTool(pipeline=pipeline, connections=urls, writable=("notes",))


@pytest.fixture(autouse=True)
async def nothing_leaks(server: BoltServer, tool: DatabaseTool, journal: ListJournal) -> AsyncIterator[None]:
    """After each test: every connection is gone, the chain holds, and no record of it shows a credential."""
    yield
    await server.until_all_gone()
    assert verify(tool.pipeline.trail.entries, head=tool.pipeline.trail.head) is None
    clean(repr(tool.pipeline.trail.entries), repr(journal.bodies))


def clean(*texts: str) -> None:
    for text in texts:
        assert not any(part in text for part in (PASSWORD, QUOTED, "127.0.0.1"))


async def ok(call: Awaitable[ToolResult]) -> ToolResult:
    result = await call
    assert result.success, result.observation()
    clean(repr(result))
    return result


async def failed(tool: DatabaseTool, call: Awaitable[ToolResult], outcome: Outcome, *said: str) -> ToolResult:
    result = await call
    assert not result.success, result.content
    assert result.outcome is outcome, result
    for text in said:
        assert text in result.error, result.error
    clean(repr(result))
    entry = tool.pipeline.trail.entries[-1]
    assert entry.outcome is outcome
    assert entry.decision is (PolicyDecision.REFUSED if outcome is Outcome.REFUSED else PolicyDecision.ALLOWED)
    return result


class TestReading:
    async def test_never_commits(self, server: BoltServer) -> None:
        server.on("RETURN", ONE)
        tool = DatabaseTool(connections={"graph": server.url()}, writable=("graph",))
        await ok(tool.neo4j_query("graph", "RETURN 1 AS n", timeout_seconds=7))
        assert server.messages() == READING
        begin = server.sent("BEGIN")[0][0]
        assert (begin["mode"], begin["db"], begin["tx_timeout"]) == ("r", "graph", 7_000)
        await server.until_all_gone()
        assert server.connections == len(server.sent("LOGON")) == len(server.sent("GOODBYE"))


class TestWriting:
    CREATED = Answer(summary={"stats": {"nodes-created": 2, "labels-added": 1, "contains-updates": True}})

    async def test_commits_where_writable(self, server: BoltServer, tool: DatabaseTool) -> None:
        call = tool.neo4j_query("graph", "CREATE (:Note)", read_only=False)
        await failed(tool, call, Outcome.REFUSED, "for reading only", "writable: notes")
        assert server.connections == 0
        server.on("CREATE (", self.CREATED)
        result = await ok(tool.neo4j_query("notes", "CREATE (:Note), ()", read_only=False))
        assert server.messages() == ["BEGIN", "RUN", "PULL", "COMMIT"]
        assert server.sent("BEGIN")[0][0].get("mode", "w") == "w"
        assert "nodes created: 2" in result.content
        assert result.metadata["counters"]["nodes_created"] == 2
        assert [entry.outcome for entry in tool.pipeline.trail.entries[-2:]] == [Outcome.STARTED, Outcome.SUCCESS]


class TestNothingIsSent:
    @table(
        "cypher",
        [
            "RETURN 1; MATCH (n) DETACH DELETE n", "RETURN 1 \\u003b CREATE ()",
            "LOAD CSV FROM 'file:///etc/passwd' AS line RETURN line",
            "WITH '/*' AS a LOAD/**/CSV FROM 'http://x' AS line RETURN '*/'",
            "LO\\u0041D CSV FROM 'http://x' AS line RETURN line", "CALL apoc.load.json('file:///x')",
            "MATCH (n) CALL (n) { DELETE n } IN TRANSACTIONS OF 10 ROWS",
            "TERMINATE TRANSACTION 'graph-transaction-1'",
        ],
    )  # fmt: skip
    async def test_refused(self, server: BoltServer, tool: DatabaseTool, cypher: str) -> None:
        call = tool.neo4j_query("notes", cypher, read_only=False)
        await failed(tool, call, Outcome.REFUSED, "is refused here")
        await failed(tool, tool.explain(cypher, "notes"), Outcome.REFUSED, "is refused here")
        assert server.connections == 0
