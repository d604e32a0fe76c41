"""The other built-in tools: files, the web against servers on this machine, people, the calculator."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.testing.repositories import write_files
from swe_ai_fleet.tools import BuiltinSettings, BuiltinTools, HttpPolicy, ToolRegistry
from swe_ai_fleet.tools.builtin import FileReader, Network
from tests.tables import table
from tests.tool_doubles import PUBLIC, Detour, Names, served


class Site:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.page = ""
        self.port = 0

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, dict(request.query)))
        match request.path:
            case "/moved":
                return web.Response(status=302, headers={"Location": request.query["to"]})
            case _:
                text = self.page or f"you asked for {request.path}"
                return web.Response(text=text, content_type="text/html" if self.page else "text/plain")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with served(site.serve) as site.port:
        yield site


@pytest.fixture
def kit(site: Site) -> BuiltinTools:
    """Pages may come from a host at a private address."""
    pages = HttpPolicy(allowed_hosts=("*",), private_hosts=("127.0.0.1",), ports=(site.port,))
    return BuiltinTools(settings=BuiltinSettings(pages=pages))


def audited(kit: BuiltinTools) -> tuple[Outcome, PolicyDecision]:
    entry = kit.pipeline.trail.entries[-1]
    return entry.outcome, entry.decision


class TestFileReader:
    async def read(self, root: Path, path: str, **more: int) -> Any:
        registry = ToolRegistry([FileReader(root)])
        found = await registry.execute_tool("file_reader", file_path=path, **more)
        entry = registry.pipeline.trail.entries[-1]
        assert (entry.outcome is Outcome.SUCCESS) == ("error" not in found)
        return found

    async def test_nothing_outside_is_read(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        write_files(tmp_path, dict.fromkeys(("secret", "root/.git/config", "root2/secret"), "do not read"))
        (root / "link").symlink_to("../secret")
        (root / "deep").symlink_to(tmp_path)
        os.mkfifo(root / "fifo")
        paths = [
            "../secret", str(tmp_path / "secret"), "/etc/passwd", "link", "deep/secret", ".git/config", "fifo", ".",
            "/dev/zero", "/proc/self/environ", "", "a\0b", "../root2/secret", f"{root}2/secret", "file:///etc/passwd",
            "~/.ssh/id_rsa", "missing", "..",
        ]  # fmt: skip
        for path in paths:
            found = await self.read(root, path)
            assert found["error"].startswith("Error: ") and "do not read" not in repr(found), path


class TestWebSearch:
    async def test_the_endpoint_opens_nothing_else(self, site: Site) -> None:
        kit = BuiltinTools(settings=BuiltinSettings(search_url=site.url(), wikipedia_url=site.url("/w/api.php")))
        for url in (site.url("/search?q=x"), f"http://127.0.0.1:{site.port + 1}/", "http://localhost/"):
            result = await kit.call("read_webpage", {"url": url})
            assert audited(kit) == (Outcome.REFUSED, PolicyDecision.REFUSED), result
        assert not site.asked


class TestReadWebpage:
    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://0x7f000001/", "file:///etc/passwd",
            "http://me:secret@a.test/", "http://a.test:22/", "a.test", "javascript:alert(1)", "http://in.test/",
        ],
    )  # fmt: skip
    async def test_addresses_that_are_refused(self, site: Site, url: str) -> None:
        backend = Detour(site.port)
        kit = BuiltinTools(network=Network(resolver=Names({"in.test": [["192.168.0.1"]]}), backend=backend))
        assert not (await kit.call("read_webpage", {"url": url})).success
        assert (audited(kit), site.asked, backend.dialled) == ((Outcome.REFUSED, PolicyDecision.REFUSED), [], [])

    async def test_redirects_are_followed_but_not_inside(self, site: Site) -> None:
        network = Network(resolver=Names({"a.test": [[PUBLIC]]}), backend=Detour(site.port))
        kit = BuiltinTools(network=network)
        result = await kit.call("read_webpage", {"url": "http://a.test/moved?to=http://a.test/x"})
        assert (result.metadata["url"], result.metadata["content"]) == ("http://a.test/x", "you asked for /x")
        for target in ("http://127.0.0.1/page", "file:///etc/passwd", "//localhost/page", "/moved?to=/moved"):
            site.asked.clear()
            assert not (await kit.call("read_webpage", {"url": f"http://a.test/moved?to={target}"})).success
            assert {path for path, _ in site.asked} == {"/moved"}


HOSTILE = {
    "comment": "<!--" * 200_000, "unclosed": "<a b='" * 150_000, "attributes": "<a " + "x " * 400_000,
    "deep": "<div>" * 150_000, "entities": "&" * 800_000,
}  # fmt: skip


class TestPageText:
    @table("name", HOSTILE)
    async def test_hostile_pages_are_read_in_bounded_time(
        self, kit: BuiltinTools, site: Site, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("swe_ai_fleet.tools.builtin.fetching.MAX_SECONDS", 0.2)
        site.page, started = HOSTILE[name], time.process_time()
        await kit.call("read_webpage", {"url": site.url("/page")})
        assert time.process_time() - started < 20

    async def test_what_is_hidden_stays_hidden_and_the_rest_does_not(self, kit: BuiltinTools, site: Site) -> None:
        hidden = "<span style='visibility:hidden'>e</span>f<svg><text>g</svg>h"
        site.page = f"a<script>b<!--</script>c<noscript>d</noscript>{hidden}"
        assert (await kit.call("read_webpage", {"url": site.url("/page")})).metadata["content"] == "acfh"


class TestPeople:
    async def test_a_question_and_its_answer_one_at_a_time(self) -> None:
        asked: list[str] = []
        waiting = 0

        async def answer(question: str) -> str:
            nonlocal waiting
            waiting += 1
            assert waiting == 1, "one question at a time"
            await asyncio.sleep(0)
            waiting -= 1
            asked.append(question)
            return "blue" if question == "Which colour?" else " "

        kit = BuiltinTools(answerer=answer)
        result = await kit.call("ask_user", {"question": "Which colour?"})
        assert (result.content, asked) == ("blue", ["Which colour?"])
        assert dict(result.metadata) == {"question": "Which colour?", "answer": "blue"}
        assert "empty" in (await kit.call("ask_user", {"question": " "})).error
        results = await asyncio.gather(*(kit.call("ask_user", {"question": str(n)}) for n in range(5)))
        assert {each.content for each in results} == {"The user gave an empty answer."}


async def calculated(expression: str) -> ToolResult:
    """What the calculator gives, which stands in the audit as it was given."""
    kit = BuiltinTools(names=["calculator"])
    result = await kit.call("calculator", {"expression": expression})
    entry = kit.pipeline.trail.entries[-1]
    assert (entry.operation, entry.outcome) == ("calculator", result.outcome)
    return result


@table(
    ("expression", "value"),
    [
        ("2 * (3 + 4) ** 2", 98), ("7 // 2 - -3 % 2", 2), ("2 ** 3 ** 2", 512), ("-2 ** 2", -4), ("2 ** -2", 0.25),
        ("10 / 4", 2.5), ("1_000 + 0x10", 1016), ("sqrt(16) + abs(-2)", 6.0), ("mean(1, 2, 3, 4)", 2.5),
        ("sum([])", 0), ("factorial(20)", math.factorial(20)), ("log(e) + cos(pi)", 0.0), ("1 > 2 < 3", False),
        ("2 ** 10000 % 1000", 376), ("+".join(["1"] * 500), 500),
    ],
)  # fmt: skip
async def test_values(expression: str, value: float) -> None:
    result = await calculated(expression)
    assert dict(result.metadata) == {"result": value, "expression": expression}
    assert type(result.metadata["result"]) is type(value)
    assert result.content == f"{expression} = {value}"


BOMBS = [
    "9**9**9", "9**9**9**9**9", "10**10**8", "(-10)**10**8", "10**-10**8", "pow(9, pow(9, 9))", "2**13287*2**13287",
    "(2**13000)**100", "factorial(10**8)", "factorial(factorial(20))", "factorial(1e300)", "comb(10**9, 5*10**8)",
    "perm(10**9, 10**8)", "perm(10000, 10000)", "round(5, -10**9)", "round(5.5, 10**9)", "'1'*10**10", "[0]*10**10",
    "b'1'*10**10", "'%1000000000d' % 1", "f'{1:1000000000}'", "(" * 100_000 + "1" + ")" * 100_000,
    "(" * 450 + "1" + ")" * 450, "-" * 990 + "1", "abs(" * 180 + "1" + ")" * 180, "1" * 100_000, "9" * 10_000 + "0",
    "*".join(["(10**3999)"] * 80), "lcm(" + ",".join(f"10**3999+{n}" for n in range(60)) + ")",
]  # fmt: skip


@table("expression", BOMBS)
async def test_bombs_are_refused_at_once(expression: str) -> None:
    started = time.perf_counter()
    assert (await calculated(expression)).outcome is Outcome.ERROR
    assert time.perf_counter() - started < 10


ESCAPES = [
    "__import__('os').system('id')", "().__class__.__bases__[0].__subclasses__()", "(lambda: 1)()",
    "[x for x in (1,2)]", "open('/etc/passwd')", "eval('1')", "(x := 5)", "abs.__self__", "FUNCTIONS",
    "__builtins__", "abs(*[1])", "{1: 2}[1]", "1 and __import__('os')", "1\nimport os", "1; 2", "\0", "\ud800",
]  # fmt: skip


@table("expression", ESCAPES)
async def test_nothing_but_arithmetic_gets_in(expression: str) -> None:
    assert (await calculated(expression)).outcome is Outcome.ERROR
