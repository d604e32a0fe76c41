"""`make selection`: pools of candidates of known worth, judged by a fleet and ranked with scripted opinion.

ONLY=name,name takes some projects or pools, JOBS=2 so many projects at once, ZOO_CACHE is where downloads stay.
POOLS is another list. BEFORE is the interpreter of a built copy of the commit to compare with. Prints each pool as it
is done and a table at the end; selection.json has all that is known at any time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from labs.selection.catalogue import LIST, PoolSpec, pools
from labs.selection.judging import Ranking
from labs.selection.making import Unmakeable, Workshop, without_packaging
from labs.selection.probing import Probing
from labs.selection.report import Row, figures, line, shares, table, write
from labs.selection.share import measured
from labs.zoo.__main__ import CACHE
from labs.zoo.catalogue import projects
from labs.zoo.commands import Unavailable
from labs.zoo.judging import Fleet, open_judges
from labs.zoo.sources import Sources


async def main() -> int:
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    listed = pools(only, Path(os.environ.get("POOLS") or LIST))
    cache = Path(os.environ.get("ZOO_CACHE") or CACHE)
    requests = Path("selection.jsonl")
    requests.unlink(missing_ok=True)
    rows: dict[str, Row] = {}
    began = time.monotonic()
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    room = asyncio.Semaphore(int(os.environ.get("JOBS") or 2))
    with tempfile.TemporaryDirectory(prefix="fleet-selection-") as name:
        directory = Path(name)
        probing = Probing(home=directory / "probing")
        ranking = Ranking(before=os.environ.get("BEFORE", ""), requests=requests, probing=probing)

        def done(row: Row) -> None:
            rows[row.spec.name] = row
            known = [rows[spec.name] for spec in listed if spec.name in rows]
            write(Path("selection.json"), known, time.monotonic() - began)
            print(f"[{len(rows)}/{len(listed)}] {line(row)}", flush=True)

        async def one(project: str, specs: Sequence[PoolSpec], fleet: Fleet) -> None:
            async with room:
                place = directory / project
                (listing,) = projects([project])
                try:
                    repository = await Sources(cache=cache).repository(listing, place / "repository")
                    without_packaging(repository)
                    workshop = Workshop(
                        fleet=fleet,
                        name=project,
                        runner=listing.runner,
                        version=listing.version,
                        repository=repository,
                        scratch=place,
                        known=cache / "selection" / f"{project}.json",
                    )
                    made = await workshop.pools(specs)
                except (Unavailable, Unmakeable) as error:
                    made = [Unmakeable(str(error)) for _ in specs]
                    repository = place
                for spec, pool in zip(specs, made, strict=True):
                    if isinstance(pool, Unmakeable):
                        done(Row(spec=spec, cause=str(pool)))
                    else:
                        done(await ranking.row(pool, fleet, repository))

        async with open_judges(directory / "home") as fleet, asyncio.TaskGroup() as group:
            for project in dict.fromkeys(spec.project for spec in listed):
                group.create_task(one(project, [spec for spec in listed if spec.project == project], fleet))
    ordered = [rows[spec.name] for spec in listed]
    spent = await measured(ranking.before)
    write(Path("selection.json"), ordered, time.monotonic() - began, spent)
    console = Console(width=220)
    console.print(table(ordered))
    console.print(shares(ordered))
    for title, value in (figures(ordered) | spent | {"seconds": round(time.monotonic() - began)}).items():
        console.print(f"{title}: {value}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:]:  # half an hour of work is not begun by a question
        sys.exit("there are no arguments: ONLY=toolz JOBS=2 python -m labs.selection")
    sys.exit(asyncio.run(main()))
