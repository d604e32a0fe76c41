"""`make tokens`: how many characters models are sent in recorded tasks, by part, step by step and in all.

BEFORE is the interpreter of a built copy of another commit, whose figures stand beside. ONLY=name,name takes some
recordings. Prints tables and writes tokens.json. Ends with 1 where a replay went another way than the
recording: a tool call failed, or showed something else.

MASKING=1 adds what masking old observations would cost beside a prefix cache.

`python -m labs.tokens --study DIR` replays nothing: it writes the same tasks for `fleet study` with a real model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from labs.tokens.masking import table
from labs.tokens.recordings import Recording, recordings, write_study
from labs.tokens.replaying import Replay, Strayed, replayed
from labs.tokens.report import figures, tables

AT_ONCE = 2


async def main(chosen: Sequence[Recording], before: Path | None, *, masking: bool) -> int:
    if (task := asyncio.current_task()) is not None:  # what ends this command ends the fleets that it started
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    room = asyncio.Semaphore(AT_ONCE)
    strayed: list[str] = []

    async def one(recording: Recording, interpreter: Path) -> Replay | None:
        async with room:
            try:
                return await replayed(recording, interpreter)
            except Strayed as error:
                strayed.append(f"{recording.name} by {interpreter}: {error}")
                return None

    async def all_by(interpreter: Path) -> dict[str, Replay]:
        ended = await asyncio.gather(*(one(recording, interpreter) for recording in chosen))
        return {recording.name: replay for recording, replay in zip(chosen, ended, strict=True) if replay}

    now, *others = await asyncio.gather(*map(all_by, (Path(sys.executable), *([before] if before else []))))
    earlier = others[0] if others else None
    strayed += [
        f"{name}: the two fleets delivered different trees"
        for name, replay in now.items()
        if earlier and name in earlier and earlier[name].tree != replay.tree
    ]
    if strayed:
        print("\n".join(strayed), file=sys.stderr)
        return 1
    Path("tokens.json").write_text(json.dumps(figures(now, earlier), indent=1) + "\n")
    console = Console(width=160)
    masked = (table({name: replay.bodies for name, replay in now.items()}),) if masking else ()
    for shown in (*tables(now, earlier), *masked):
        console.print(shown)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="labs.tokens", description="Replay recorded tasks and count what models are sent."
    )
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="these recordings; all by default")
    parser.add_argument("--before", type=Path, help="the interpreter of a built copy of another commit")
    parser.add_argument("--study", type=Path, metavar="DIR", help="write the tasks for fleet study, and nothing else")
    parser.add_argument("--masking", action="store_true", help="what masking old observations would cost, too")
    options = parser.parse_args()
    if options.study:
        print(write_study(options.study))
        sys.exit()
    if options.before and not options.before.exists():
        parser.error(f"there is no {options.before}")
    try:
        chosen = recordings([name for name in options.only.split(",") if name])
    except ValueError as error:
        parser.error(str(error))
    sys.exit(asyncio.run(main(chosen, options.before, masking=options.masking)))
