"""Tables of what replays sent, beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from labs.tokens.parts import CONTRIBUTORS, MAP, OBSERVED, ORDER, TASK
from labs.tokens.replaying import Replay

FIRST_REQUEST = 7_000
"""Characters that the first request may have without the task, files for contributors and the map."""
SAVED = 0.35
"""The share of all characters that is to be saved against the earlier commit, with the same replies."""
OTHERS = "further requests"

Replays = Mapping[str, Replay]
"""By recording."""


def by_part(replays: Replays) -> dict[str, int]:
    """Characters by part, over all requests of the agents that solve the tasks."""
    return _summed(request for replay in replays.values() for request in replay.requests)


def first_request(replay: Replay) -> int:
    """The first request's characters without the task, files for contributors and the map."""
    return sum(count for part, count in replay.requests[0].items() if part not in (TASK, CONTRIBUTORS, MAP))


def figures(replays: Replays, before: Replays | None) -> dict[str, Any]:
    """What tokens.json has: totals, requests one by one, and what is saved against the earlier commit."""
    told = {"now": _told(replays)}
    if before:
        told["before"] = _told(before)
        told["saved"] = round(saved(_all(before), _all(replays)), 4)
    return told


def saved(before: float, now: float) -> float:
    """The share of `before` that is not there any more; 0 of nothing."""
    return 1 - now / before if before else 0.0


def tables(replays: Replays, before: Replays | None) -> list[Table]:
    """By part, by task, step by step, and the figures with targets; without `before` its columns are missing."""
    return [
        _table("characters of all requests, by part", _part_rows(replays, before), before),
        _table("by task", _task_rows(replays, before), before),
        *(_steps(name, replay, before[name] if before else None) for name, replay in replays.items()),
        _targets(replays, before),
    ]


def _table(title: str, rows: Iterable[tuple[str, int, int]], before: Replays | None) -> Table:
    table = _columns(title, "", before)
    for name, earlier, now in rows:
        _row(table, name, earlier, now, before)
    return table


def _columns(title: str, first: str, before: Replays | None) -> Table:
    table = Table(first, title=title)
    for heading in ("before", "now", "saved", "saved, %") if before else ("now",):
        table.add_column(heading, justify="right")
    return table


def _row(table: Table, name: str, earlier: int, now: int, before: object) -> None:
    share = f"{100 * saved(earlier, now):.1f}" if earlier else ""
    cells = (f"{earlier:,}", f"{now:,}", f"{earlier - now:,}", share) if before else (f"{now:,}",)
    table.add_row(name, *cells)


def _part_rows(replays: Replays, before: Replays | None) -> Iterable[tuple[str, int, int]]:
    now, earlier = by_part(replays), by_part(before or {})
    for part in _ordered({**earlier, **now}):
        yield part, earlier.get(part, 0), now.get(part, 0)
    yield "all requests", sum(earlier.values()), sum(now.values())
    yield OTHERS, _others(before or {}), _others(replays)


def _task_rows(replays: Replays, before: Replays | None) -> Iterable[tuple[str, int, int]]:
    for name, now in replays.items():
        earlier = before[name] if before else None
        yield f"{name}: requests", len(earlier.requests) if earlier else 0, len(now.requests)
        yield (
            f"{name}: first request",
            sum(earlier.requests[0].values()) if earlier else 0,
            sum(now.requests[0].values()),
        )
        yield f"{name}: all requests", earlier.characters if earlier else 0, now.characters


def _steps(name: str, replay: Replay, earlier: Replay | None) -> Table:
    table = _columns(f"{name}, request by request", "request", earlier)
    table.add_column("what is new in it")
    for number in range(max(len(replay.requests), len(earlier.requests) if earlier else 0)):
        now = _at(replay.requests, number)
        sizes = [f"{sum(now.values()):,}"]
        if earlier:
            old, new = sum(_at(earlier.requests, number).values()), sum(now.values())
            sizes = [f"{old:,}", f"{new:,}", f"{old - new:,}", f"{100 * saved(old, new):.1f}"]
        last = _at(replay.requests, number - 1) if number else {}
        news = (f"{part.removeprefix(OBSERVED)} {now[part] - last.get(part, 0):+,}" for part in _ordered(now))
        table.add_row(str(number + 1), *sizes, ", ".join(one for one in news if not one.endswith(" +0")))
    return table


def _targets(replays: Replays, before: Replays | None) -> Table:
    table = Table("figure", "value", "target", title="targets")
    worst = max(map(first_request, replays.values()))
    first = f"{worst:,}" + (f" (before: {max(map(first_request, before.values())):,})" if before else "")
    table.add_row("first request without task, files for contributors and map", first, f"<= {FIRST_REQUEST:,}")
    if before:
        agents = saved(sum(by_part(before).values()), sum(by_part(replays).values()))
        every = saved(_all(before), _all(replays))
        table.add_row("prompt characters saved, same replies", f"{agents:.1%}", f">= {SAVED:.0%}")
        table.add_row(f"the same with {OTHERS}", f"{every:.1%}", "")
    return table


def _told(replays: Replays) -> dict[str, Any]:
    return {
        "characters": sum(by_part(replays).values()),
        OTHERS.replace(" ", "_"): _others(replays),
        "first_request": max(map(first_request, replays.values())),
        "parts": by_part(replays),
        "tasks": {
            name: {"characters": replay.characters, "requests": replay.requests} for name, replay in replays.items()
        },
    }


def _others(replays: Replays) -> int:
    return sum(_summed(request for replay in replays.values() for request in replay.others).values())


def _all(replays: Replays) -> int:
    return sum(by_part(replays).values()) + _others(replays)


def _summed(requests: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for request in requests:
        for part, count in request.items():
            total[part] = total.get(part, 0) + count
    return {part: total[part] for part in _ordered(total)}


def _ordered(parts: Iterable[str]) -> list[str]:
    return sorted(parts, key=lambda part: (ORDER.index(part) if part in ORDER else len(ORDER), part))


def _at(requests: Sequence[Mapping[str, int]], number: int) -> Mapping[str, int]:
    return requests[number] if number < len(requests) else {}
