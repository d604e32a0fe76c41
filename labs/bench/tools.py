"""What a tool call costs against the bare thing: calls a second, the floor beside each."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools import FileTool

MODULE_LINES = 400
TREE_FILES = 50_000
SECONDS = 2.0


async def tool_figures(directory: Path) -> dict[str, float]:
    """Calls a second of reading, editing and searching, each audited, and of what they stand on."""
    figures: dict[str, float] = {}
    module = "".join(f"def function_{number}():\n    return {number}\n\n\n" for number in range(MODULE_LINES // 4))
    root = make_repository(directory / "module", {"module.py": module})
    async with open_workspace(root) as workspace:
        files = FileTool(workspace)
        path = root / "module.py"
        figures["read_file_per_s"] = await _rate(lambda _: files.read_file(path="module.py"))
        figures["read_file_floor_per_s"] = await _rate(lambda _: asyncio.to_thread(path.read_text))

        async def edit(turn: int) -> ToolResult:
            old, new = ("return 50\n", "return 5000\n") if turn % 2 == 0 else ("return 5000\n", "return 50\n")
            return await files.edit_file(path="module.py", old=old, new=new)

        figures["edit_file_per_s"] = await _rate(edit)
    tree = _tree(directory / "tree")
    async with open_workspace(tree) as workspace:
        files = FileTool(workspace)
        figures["search_50k_ms"] = 1000 / await _rate(lambda _: files.search_in_files(pattern="needle_[0-9]+_here"))
    floor = ("rg", "--sort", "path", "needle_[0-9]+_here", str(tree))
    figures["search_50k_floor_ms"] = 1000 / await _rate(lambda _: asyncio.to_thread(_plain, floor))
    return {name: round(value, 1) for name, value in figures.items()}


async def _rate(call: Callable[[int], Awaitable[ToolResult | str]]) -> float:
    """Calls a second, one after the other, after one that warms up. A failing call ends the measurement."""
    _expect(await call(0))
    turn, began = 1, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS or turn < 4:
        _expect(await call(turn))
        turn += 1
    return (turn - 1) / elapsed


def _expect(result: ToolResult | str) -> None:
    if isinstance(result, ToolResult) and not result.success:
        raise RuntimeError(f"{result.operation}: {result.error}")


def _plain(argv: tuple[str, ...]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _tree(root: Path) -> Path:
    """A repository of many small files, twenty of which hold what is searched for."""
    for number in range(TREE_FILES):
        if number % 500 == 0:
            (root / f"package_{number // 500}").mkdir(parents=True)
        needle = f"needle_{number}_here = 1\n" if number % 2500 == 0 else ""
        text = f"VALUE_{number} = {number}\n{needle}\n\ndef get_{number}():\n    return VALUE_{number}\n"
        (root / f"package_{number // 500}" / f"module_{number}.py").write_text(text)
    subprocess.run(("git", "init", "-q", str(root)), check=True)
    return root


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as name:
        for figure, value in asyncio.run(tool_figures(Path(name))).items():
            print(f"{figure:28} {value:10.1f}")
