"""Functions as tools: what their signatures and docstrings say, and how they are run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Outcome, Risk
from swe_ai_fleet.tools import FunctionTool, ToolRegistry


def len_of(text: str) -> int:
    """Count the letters."""
    return len(text)


class Colour(StrEnum):
    RED = "red"


ABANDONED = 4
"""So many threads of one tool may be left behind."""


class Point(BaseModel):
    x: int


class TestFunctions:
    async def test_schema_from_signature_and_docstring(self) -> None:
        def find(text: str, limit: Annotated[int, Field(ge=1)] = 5, colour: Colour = Colour.RED) -> None:
            """Find something.

            More about it.

            Args:
                text (str): What to look for,
                    on two lines.
                limit: How many.
            """

        tool = FunctionTool(find)
        assert (tool.name, tool.description) == ("find", "Find something.")
        assert FunctionTool(find, one_line_doc=False).description.startswith("Find something.\n\nMore about it.")
        schema: Any = tool.schema()
        assert schema["properties"]["text"] == {"type": "string", "description": "What to look for, on two lines."}
        assert schema["properties"]["limit"]["minimum"] == 1
        assert (schema["required"], schema["additionalProperties"]) == (["text"], False)
        assert [(p.name, p.type, p.required) for p in tool.parameters][:2] == [
            ("text", "string", True),
            ("limit", "integer", False),
        ]
        assert "limit" in (await ToolRegistry([tool]).execute_tool("find", text="a", limit=0))["error"]

    async def test_arguments_come_as_their_types(self) -> None:
        def take(colour: Colour, point: Point, number: int | None = 5) -> str:
            return f"{colour!r} {point!r} {number!r}"

        found = await ToolRegistry([take]).execute_tool("take", colour="red", point={"x": 1}, number=None)
        assert found == "<Colour.RED: 'red'> Point(x=1) None"

    async def test_async_ones_run_on_the_loop_sync_ones_in_a_thread(self) -> None:
        async def here() -> int:
            return threading.get_ident()

        def there() -> int:
            return threading.get_ident()

        registry = ToolRegistry([here, there])
        assert await registry.execute_tool("here") == threading.get_ident()
        assert await registry.execute_tool("there") != threading.get_ident()

    async def test_methods_and_what_they_raise(self) -> None:
        class Shop:
            def price(self, item: str) -> float:
                raise LookupError(f"no {item}")

        found = await ToolRegistry([Shop().price]).execute_tool("price", item="tea")
        assert found == {"error": "Error: price failed: LookupError: no tea"}

    @pytest.mark.parametrize("fault", [SystemExit(1), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
    async def test_what_ends_a_thread_ends_only_the_call(self, fault: BaseException) -> None:
        def leave() -> None:
            raise fault

        found = await ToolRegistry([leave]).execute_tool("leave")
        assert type(fault).__name__ in found["error"]

    async def test_a_thread_that_never_ends_is_left_behind_and_said_so(self) -> None:
        go_on = threading.Event()

        def hang() -> None:
            go_on.wait(30)

        registry = ToolRegistry([FunctionTool(hang, time_limit_seconds=0.02)])
        calls = [registry.execute_tool("hang") for _ in range(ABANDONED)]
        for found in await asyncio.gather(*calls):
            assert "did not finish within 0.02 seconds; it runs in a thread" in found["error"]
        assert registry.pipeline.trail.entries[-1].outcome is Outcome.TIMEOUT
        refused = await registry.execute_tool("hang")
        assert f"{ABANDONED} earlier calls of hang ran out of time" in refused["error"]
        go_on.set()
        async with asyncio.timeout(10):
            while "earlier calls" in str(await registry.execute_tool("hang")):
                await asyncio.sleep(0.005)

    def test_a_hanging_thread_does_not_keep_the_process(self) -> None:
        script = (
            "import asyncio, threading\n"
            "from swe_ai_fleet.tools import FunctionTool, ToolRegistry\n"
            "def hang(): threading.Event().wait()\n"
            "registry = ToolRegistry([FunctionTool(hang, time_limit_seconds=0.05)])\n"
            "print(asyncio.run(registry.execute_tool('hang')))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (done.returncode, "did not finish" in done.stdout) == (0, True)

    def test_what_has_no_schema(self) -> None:
        def any_number(*numbers: int) -> int:
            return sum(numbers)

        def options(**more: int) -> None: ...

        def unresolved(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        def foreign(a: threading.Thread) -> None: ...

        def generator(a: int) -> Iterator[int]:
            yield a

        def hidden(_a: int) -> None: ...

        def callback(a: Callable[[], int]) -> None: ...

        functions: list[Any] = [any_number, options, unresolved, foreign, generator, hidden, callback]
        for function in functions:
            with pytest.raises(InvalidRequest) as caught:
                FunctionTool(function)
            assert function.__name__ in caught.value.message

    def test_traits(self) -> None:
        tool = FunctionTool(len_of, read_only=True, risk=Risk.LOW, network=False, roles=frozenset({Role.QA}))
        (definition,) = ToolRegistry([tool]).toolkit().definitions.values()
        assert (definition.spec.read_only, definition.spec.network, definition.spec.roles) == (True, False, {Role.QA})


@pytest.mark.parametrize(
    ("text", "descriptions"),
    [
        (
            "Do it.\n\nParameters\n----------\na : int\n    The first.\n\n    Still it.\nb, c\n    Two of them.\n\n"
            "Returns\n-------\nint\n    The sum.",
            ("The first. Still it.", "Two of them.", "Two of them."),
        ),
        (
            "Do it.\n\n:param a: The first\n    of two.\n:param int b: The second.\n:returns: x",
            ("The first of two.", "The second.", ""),
        ),
        (
            "Do it.\n\nArgs:\n  a (dict[str, list(int)], optional): See: b.\n  *rest: All.\n\n  b: B.\n\nReturns:\n c: d",
            ("See: b.", "B.", ""),
        ),
        *((f"Args:\n  x{text}", ("", "", "")) for text in ("", "Parameters\n---", ":param", "a" * 50_000, "(" * 9_000)),
    ],
    ids=range(8),
)  # fmt: skip
def test_what_a_docstring_says_of_parameters(text: str, descriptions: tuple[str, ...]) -> None:
    def function(a: int, b: int, c: int) -> None: ...

    function.__doc__ = text
    started = time.perf_counter()
    tool = FunctionTool(function)
    assert time.perf_counter() - started < 10
    properties: Any = tool.schema()["properties"]
    assert tuple(properties[name].get("description", "") for name in "abc") == descriptions
    assert tool.description == (text if text.startswith("Args") else "Do it.")[: len(tool.description)]
