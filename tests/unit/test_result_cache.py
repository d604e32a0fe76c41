"""Identical read-only calls: answered from before where that cannot be wrong, and said so where it may be old."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.tools import (
    FileTool,
    HttpPolicy,
    HttpTool,
    Pipeline,
    ResultCache,
    SharedResults,
    ToolFailure,
    Toolkit,
    operation,
)
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import MASK, Secrets
from tests.tables import table
from tests.tool_doubles import served


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World(Toolkit):
    """A place that is read and written, and whether it really was."""

    name = "world"

    def __init__(self, pipeline: Pipeline, *, scope: str | None = "here", texts: dict[str, str] | None = None) -> None:
        super().__init__(FileTool(Path()).workspace, pipeline)
        self.texts = {} if texts is None else texts
        self.calls: list[str] = []
        self.begun = asyncio.Event()
        self.release = asyncio.Event()
        self.scope = scope

    def shared_scope(self, spec: OperationSpec) -> str | None:
        return self.scope

    def result(self, name: str, content: str = "", **metadata: object) -> ToolResult:
        self.calls.append(name)
        return ToolResult(success=True, operation=f"world_{name}", content=content, metadata=metadata)

    @operation(read_only=True)
    async def read(self, path: str, lines: int = 10) -> ToolResult:
        """Read."""
        if path not in self.texts:
            self.calls.append("failed read")
            raise ToolFailure("there is nothing")
        return self.result("read", self.texts[path], path=path)

    @operation(read_only=True)
    async def slow_read(self, path: str) -> ToolResult:
        """Read in two halves."""
        found = self.texts.get(path, "nothing")
        self.begun.set()
        await self.release.wait()
        return self.result("slow_read", found)

    @operation()
    async def write(self, path: str, text: str) -> ToolResult:
        """Write."""
        self.texts[path] = text
        return self.result("write")

    @operation(executes=True)
    async def shell(self, command: str) -> ToolResult:
        """Run."""
        return self.result("shell", command)

    @operation(read_only=True, network=True, cache_seconds=60.0)
    async def search(self, query: str) -> ToolResult:
        """Search outside."""
        return self.result("search", f"found {len(self.calls)}")


def world(cache: ResultCache | None = None, *, scope: str | None = "here", mask: Secrets | None = None) -> World:
    return World(Pipeline(cache=cache or ResultCache(), mask=mask), scope=scope)


class TestWithinARun:
    async def test_an_identical_read_is_answered_from_before(self) -> None:
        kit = world()
        missing = await kit.call("read", {"path": "a"})
        kit.texts["a"] = "text"
        first = await kit.call("read", {"path": "a"})
        second = await kit.call("read", {"lines": 10, "path": "a"})
        assert kit.calls == ["failed read", "read"]
        assert (missing.cached, first.cached, second.cached) == (False, False, True), "errors are never kept"
        assert (second.content, second.metadata) == ("text", {"path": "a"})
        before, entry = kit.pipeline.trail.entries[-2:]
        assert (entry.decision, entry.reason) == (PolicyDecision.ALLOWED, "answered from the cache")
        assert entry.output_digest == before.output_digest
        assert (await kit.call("read", {"path": "a", "lines": 9})).cached is False

    async def test_a_refused_call_is_never_answered_and_a_sub_agents_writes_count(self) -> None:
        cache = ResultCache()
        kit = world(cache)
        kit.texts["a"] = "old"
        await kit.call("read", {"path": "a"})
        denied = World(Pipeline(cache=cache, policy=Policy(denied=frozenset({"world_read"}))), texts=kit.texts)
        result = await denied.call("read", {"path": "a"})
        assert (result.outcome, result.cached) == (Outcome.REFUSED, False)
        sub = World(kit.pipeline.under(Policy()), texts=kit.texts)
        assert (await sub.call("read", {"path": "a"})).cached
        await sub.call("write", {"path": "a", "text": "new"})
        assert (await kit.call("read", {"path": "a"})).content == "new"


class TestAtTheSameTime:
    async def test_a_read_that_a_write_overtook_is_not_kept(self) -> None:
        kit = world()
        kit.texts["a"] = "old"
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(kit.call("slow_read", {"path": "a"}))
            await kit.begun.wait()
            await kit.call("write", {"path": "a", "text": "new"})
            await kit.call("read", {"path": "a"})
            kit.release.set()
        assert slow.result().content == "old"
        assert (await kit.call("slow_read", {"path": "a"})).content == "new"

    @given(
        actions=st.lists(
            st.tuples(st.sampled_from(["read", "write", "shell", "drop"]), st.sampled_from("ab"), st.integers(0, 2)),
            max_size=30,
        )
    )
    @settings(max_examples=50)
    def test_a_read_is_never_stale(self, actions: list[tuple[str, str, int]]) -> None:
        async def go() -> None:
            kit = world()
            for name, path, number in actions:
                match name:
                    case "read":
                        seen = await kit.call("read", {"path": path})
                        assert (seen.content if seen.success else None) == kit.texts.get(path)
                    case "write":
                        await kit.call("write", {"path": path, "text": str(number)})
                    case "shell":
                        await kit.call("shell", {"command": "x"})
                    case _:
                        kit.pipeline.trail.revision += 1
                        kit.texts.pop(path, None)

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(go())
        finally:
            loop.close()


class TestAcrossRuns:
    async def test_a_cacheable_result_serves_other_runs_and_says_its_age(self) -> None:
        clock = Clock()
        shared = SharedResults(clock=clock)
        first, second = (world(ResultCache(tenant="t", shared=shared)) for _ in range(2))
        assert (await first.call("search", {"query": "q"})).content == "found 0"
        clock.now += 1
        assert (await first.call("search", {"query": "q"})).content == "(from the cache, 1 second old)\nfound 0"
        clock.now += 11
        result = await second.call("search", {"query": "q"})
        assert result.content == "(from the cache, 12 seconds old)\nfound 0"
        assert result.cached
        assert second.calls == []
        assert second.pipeline.trail.entries[-1].reason == "answered from the cache"
        clock.now += 48
        assert not (await second.call("search", {"query": "q"})).cached

    @table(
        ("tenant", "scope", "query"), [("u", "here", "q"), ("t", "there", "q"), ("t", None, "q"), ("t", "here", "r")]
    )
    async def test_another_tenant_scope_or_question_gets_its_own(self, tenant: str, scope: str | None, query: str):
        shared = SharedResults()
        await world(ResultCache(tenant="t", shared=shared)).call("search", {"query": "q"})
        other = world(ResultCache(tenant=tenant, shared=shared), scope=scope)
        assert [(await other.call("search", {"query": query})).cached for _ in range(2)] == [False, True]

    async def test_only_masked_text_is_kept_and_each_run_masks_its_own(self) -> None:
        class Telling(World):
            @operation(read_only=True, network=True, cache_seconds=60.0)
            async def tell(self) -> ToolResult:
                """Tell."""
                return self.result("tell", "alpha-secret and beta-secret", inner=["alpha-secret"])

        shared = SharedResults()
        first = Telling(Pipeline(cache=ResultCache(shared=shared), mask=Secrets(["alpha-secret"])))
        second = Telling(Pipeline(cache=ResultCache(shared=shared), mask=Secrets(["beta-secret"])))
        await first.call("tell", {})
        result = await second.call("tell", {})
        assert result.cached
        assert result.content.endswith(f"\n{MASK} and {MASK}")
        assert result.metadata == {"inner": [MASK]}


class Site:
    def __init__(self) -> None:
        self.port = 0
        self.asked: list[str] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.raw_path)
        headers = json.loads(request.query.get("told", "{}"))
        status = int(request.query.get("status", "200"))
        return web.Response(status=status, text=str(len(self.asked)) if status == 200 else None, headers=headers)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with served(site.answer) as site.port:
        yield site


class TestTheTools:
    def http(self, site: Site, shared: SharedResults, *hosts: str) -> HttpTool:
        policy = HttpPolicy(private_hosts=hosts or ("127.0.0.1",), ports=(site.port,))
        return HttpTool(pipeline=Pipeline(cache=ResultCache(shared=shared)), policy=policy)

    @table(
        ("asked", "status", "told", "seconds"),
        [
            ({}, 200, {}, 30), ({}, 200, {"cache-control": "max-age=10"}, 10),
            ({}, 200, {"cache-control": 'public, max-age="100"', "age": "40"}, 60),
            ({}, 200, {"cache-control": "max-age=999999999"}, 300), ({}, 200, {"cache-control": "No-Store"}, 0),
            ({}, 200, {"cache-control": "private, max-age=100"}, 0),
            ({}, 200, {"set-cookie": "a=b", "cache-control": "max-age=100"}, 0), ({}, 200, {"vary": "*"}, 0),
            ({}, 204, {}, 0), ({"authorization": "Bearer abcdef"}, 200, {}, 0),
        ],
    )  # fmt: skip
    async def test_an_answer_is_kept_for_as_long_as_its_headers_say(
        self, site: Site, asked: dict[str, str], status: int, told: dict[str, str], seconds: float
    ) -> None:
        clock = Clock()
        kit = self.http(site, SharedResults(clock=clock))
        url = site.url(f"/x?status={status}&told={quote(json.dumps(told))}")
        for later, cached in ((0, False), (seconds - 1, seconds > 0), (2, False)):
            clock.now += later
            result = await kit.get(url, headers=asked)
            assert (result.success, result.cached) == (True, cached)

    async def test_files_are_read_again_after_an_edit(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("x = 1\n")
        kit = FileTool(tmp_path, Pipeline(cache=ResultCache()))
        for expected in (False, True):
            assert (await kit.read_file("a.py")).cached is expected
        assert (await kit.edit_file("a.py", "x = 1", "x = 2")).success
        again = await kit.read_file("a.py")
        assert not again.cached
        assert "x = 2" in again.content
