"""`make zoo`: real projects, their environments and baselines, and pools of changes made by machine, judged.

ONLY=name,name takes some of them, JOBS=2 so many at once, ZOO_CACHE is where downloads stay. Prints each project as it
is done and a table at the end; zoo.json has all that is known at any time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from labs.zoo.catalogue import Project, projects
from labs.zoo.judging import Fleet, open_judges
from labs.zoo.report import Row, figures, line, table, write
from labs.zoo.sources import Sources
from labs.zoo.visit import visit

CACHE = Path.home() / ".cache" / "swe-ai-fleet-zoo"


async def main() -> int:
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    listed = projects(only)
    sources = Sources(cache=Path(os.environ.get("ZOO_CACHE") or CACHE))
    rows: dict[str, Row] = {}
    began = time.monotonic()
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    room = asyncio.Semaphore(int(os.environ.get("JOBS") or 2))
    with tempfile.TemporaryDirectory(prefix="fleet-zoo-") as name:
        directory = Path(name)
        async with open_judges(directory / "home") as fleet:

            async def one(project: Project, fleet: Fleet) -> None:
                async with room:
                    row = await visit(project, sources, fleet, directory)
                rows[project.name] = row
                known = [rows[project.name] for project in listed if project.name in rows]
                write(Path("zoo.json"), known, time.monotonic() - began)
                print(f"[{len(rows)}/{len(listed)}] {line(row)}", flush=True)

            async with asyncio.TaskGroup() as group:
                for project in listed:
                    group.create_task(one(project, fleet))
    ordered = [rows[project.name] for project in listed]
    console = Console(width=200)
    console.print(table(ordered))
    for title, value in (figures(ordered) | {"seconds": round(time.monotonic() - began)}).items():
        console.print(f"{title}: {value}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:]:  # an hour of work is not begun by a question
        sys.exit("there are no arguments: ONLY=toolz,fnv JOBS=2 python -m labs.zoo")
    sys.exit(asyncio.run(main()))
