"""The options of `fleet study`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import Fleet
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.extensions.batch.commands import ForAll, Where, open_bench, plain_name
from swe_ai_fleet.settings import Settings

_MOST_CANDIDATES = 300


async def study(
    screen: Screen,
    settings: Settings,
    fleet: Fleet,
    file: Annotated[Path, argument("A task a line, as fleet batch takes them.", metavar="FILE.jsonl")],
    *,
    candidates: Annotated[str, option("With how many candidates each task is run.", metavar="N,N,…")] = "1,3,5",
    without: Annotated[
        str,
        option(
            "Once more with the most candidates and without reviews (revisions and votes too), without probes.",
            metavar="PART,…",
        ),
    ] = "",
    repeats: Annotated[int, option("How often each task is run with each number.", min=1)] = 1,
    rounds: options.Rounds = None,
    where: Where,
    parallel: Annotated[int, option("How many tasks are under way at a time.", min=1)] = 4,
    stagger: options.Stagger = 1.0,
    each: ForAll,
    hints: options.Hints = False,
    evaluate: Annotated[bool, option("Run the records' hidden tests on the winners, here.")] = False,
    name: Annotated[str, option("Of this study; another name runs everything anew. Default: the file's.")] = "",
    output: Annotated[
        Path | None, option("For results. Default: NAME.study by the file.", words="-o --output", metavar="DIR")
    ] = None,
) -> Exit:
    from swe_ai_fleet.extensions.batch.plan import Plan
    from swe_ai_fleet.extensions.batch.study_run import Study, parts
    from swe_ai_fleet.extensions.batch.study_run import study as work

    stem = plain_name(name or file.name.removesuffix(".jsonl"))
    directory = output or file.parent / f"{stem}.study"
    plan = Plan(
        file=file,
        name=stem,
        order=each.order(probes=True, rounds=rounds, deliberate_only=True),
        results=directory / "results.jsonl",
        predictions=directory / "preds.json",
        repositories=directory / "repositories",
        parallel=parallel,
        stagger=stagger,
        hints=hints,
        evaluate=evaluate,
        **asdict(where),
    )
    wanted = Study(
        plan=plan, candidates=numbers(candidates), without=parts(without), repeats=repeats, directory=directory
    )
    return await work(screen, fleet, wanted, partial(open_bench, settings, plan))


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of candidates as they were given, each once, from few to many. Raises CommandFault."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(len(part) < 4 and part.isascii() and part.isdigit() for part in parts):
        raise CommandFault(
            f"{text[:80]!r} is not a list of numbers of candidates", field="candidates", hint="like 1,3,5"
        )
    counts = sorted({int(part) for part in parts})
    if not 1 <= counts[0] <= counts[-1] <= _MOST_CANDIDATES:
        raise CommandFault(f"{text[:80]} is out of range", field="candidates", hint=f"1 to {_MOST_CANDIDATES}")
    return tuple(counts)
