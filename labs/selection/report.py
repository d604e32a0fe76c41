"""What the selection came to: a row a pool, the shares that count, a table and `selection.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from labs.selection.catalogue import PoolSpec, Probe
from labs.selection.making import Made, Pool
from labs.selection.probing import ProbeEnd

HONESTIES = (0.5, 0.65, 0.8)
"""With which probability scripted reviewers and judges say the truth."""
SIDES = {
    "": "now",
    "_without_probes": "without_probes",
    "_unexamined": "unexamined",
    "_before": "before",
}
"""Suffixes of figures, and the attributes of rows that these are about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """How often, of all draws of one pool at one honesty: the right one wins; a wrong one does; it is verified.

    `opinions` are the reviews and votes that all draws together asked for.
    """

    draws: int
    right: int = 0
    wrong: int = 0
    wrong_verified: int = 0
    unverified: int = 0
    opinions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one pool.

    Attributes:
        verdicts: By candidate, without probes.
        probes: What came of each probe of the statement.
        now: By honesty, what this tree's ranking selects.
        without_probes: What it selects where nobody makes probes.
        unexamined: What it selects where no test runs on other candidates, either.
        before: What the ranking of another commit does; empty: not known.
        cause: Why there is no pool; empty otherwise.
        matrix_seconds: What running tests on other candidates took, of `seconds`; `probe_seconds`: running probes.
    """

    spec: PoolSpec
    pool: Pool | None = None
    verdicts: Mapping[str, str] = field(default_factory=dict[str, str])
    probes: Sequence[ProbeEnd] = ()
    now: Mapping[float, Selected] = field(default_factory=dict[float, Selected])
    without_probes: Mapping[float, Selected] = field(default_factory=dict[float, Selected])
    unexamined: Mapping[float, Selected] = field(default_factory=dict[float, Selected])
    before: Mapping[float, Selected] = field(default_factory=dict[float, Selected])
    seconds: float = 0.0
    matrix_seconds: float = 0.0
    probe_seconds: float = 0.0
    cause: str = ""

    @property
    def candidates(self) -> Sequence[Made]:
        return self.pool.candidates if self.pool else ()

    @property
    def has_right(self) -> bool:
        return any(made.right for made in self.candidates)

    @property
    def shown(self) -> bool:
        """Whether any candidate brings a good test."""
        return any(made.author.tests.good for made in self.candidates)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.spec.name,
            "faults": list(self.pool.faults) if self.pool else [],
            "hidden": list(self.pool.hidden) if self.pool else [],
            "candidates": {
                made.candidate_id: {
                    "made": str(made.author),
                    "right": made.right,
                    "brings": list(made.brings),
                    "fails": list(made.broken),
                    "verdict": self.verdicts.get(made.candidate_id, ""),
                }
                for made in self.candidates
            },
            "probes": [asdict(end) for end in self.probes],
            "now": _plain(self.now),
            "without_probes": _plain(self.without_probes),
            "unexamined": _plain(self.unexamined),
            "before": _plain(self.before),
            "seconds": round(self.seconds, 1),
            "matrix_seconds": round(self.matrix_seconds, 1),
            "probe_seconds": round(self.probe_seconds, 1),
            "cause": self.cause,
        }


def counted(draws: Iterable[tuple[float, str, str | None, int]], right: Iterable[str]) -> dict[float, Selected]:
    """Draws of one pool, as `opinion.selected` yields them, by honesty.

    A ranking without verdicts delivers each winner alike: all of its wrong ones count as delivered for verified.
    """
    by: dict[float, list[tuple[str, str | None]]] = {}
    asked: Counter[float] = Counter()
    for honesty, winner, verdict, opinions in draws:
        by.setdefault(honesty, []).append((winner, verdict))
        asked[honesty] += opinions
    known = frozenset(right)
    return {
        honesty: Selected(
            draws=len(ends),
            right=sum(winner in known for winner, _ in ends),
            wrong=sum(bool(winner) and winner not in known for winner, _ in ends),
            wrong_verified=sum(
                bool(winner) and winner not in known and verdict in ("verified", None) for winner, verdict in ends
            ),
            unverified=sum(bool(winner) and verdict == "unverified" for winner, verdict in ends),
            opinions=asked[honesty],
        )
        for honesty, ends in by.items()
    }


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The shares, each from 0 to 1."""
    judged = [row for row in rows if row.now]
    shares: dict[str, Any] = {"pools": len(judged), "candidates": sum(len(row.candidates) for row in judged)}
    for suffix, side in SIDES.items():
        known: list[tuple[Row, Mapping[float, Selected]]] = [(row, getattr(row, side)) for row in judged]
        known = [(row, by) for row, by in known if by]
        for honesty in HONESTIES:
            ends = [by[honesty] for row, by in known if row.has_right]
            shares[f"right_wins_{honesty * 100:.0f}{suffix}"] = _share((end.right, end.draws) for end in ends)
        every = [end for _, by in known for end in by.values()]
        shares[f"wrong_verified{suffix}"] = _share((end.wrong_verified, end.draws) for end in every)
        draws = sum(end.draws for end in every)
        shares[f"opinions{suffix}"] = round(sum(end.opinions for end in every) / draws, 2) if draws else None
        for title, shown in (("with", True), ("without", False)):
            ends = [by[0.65] for row, by in known if row.has_right and row.shown is shown]
            shares[f"right_wins_65_{title}_good_tests{suffix}"] = _share((end.right, end.draws) for end in ends)
        # Of all winners, how far each is to be relied on.
        shares[f"verified{suffix}"] = _share((end.right + end.wrong - end.unverified, end.draws) for end in every)
    shares["pools_without_good_tests"] = _share((not row.shown, 1) for row in judged)
    shares["made"] = dict(sorted(Counter(str(made.author) for row in judged for made in row.candidates).items()))
    shares["probes"] = _probes(judged)
    shares["probe_seconds"] = round(sum(row.probe_seconds for row in judged), 1)
    shares["matrix_seconds"] = round(sum(row.matrix_seconds for row in judged), 1)
    return shares


def _probes(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """By kind of probe: how many are listed, made, and tell something; on how many right and wrong candidates these
    pass and fail, or say nothing."""
    counts: dict[str, Counter[str]] = {str(kind): Counter() for kind in Probe}
    for row in rows:
        for kind in row.spec.probes:
            counts[kind]["listed"] += 1
        right = {made.candidate_id for made in row.candidates if made.right}
        for end in row.probes:
            told = counts[end.kind]
            told["made"] += 1
            told["telling"] += end.telling
            for title, names in (("pass", end.passed), ("fail", end.failed), ("say nothing", end.unsaid)):
                told[f"right that {title}"] += len(right.intersection(names))
                told[f"wrong that {title}"] += len(set(names) - right)
    return {kind: {name: number for name, number in told.items() if number} for kind, told in counts.items()}


def write(path: Path, rows: Sequence[Row], seconds: float, spent: Mapping[str, Any] | None = None) -> None:
    """All that is known so far; `spent` has the figures of `share.py`."""
    document = (
        figures(rows) | dict(spent or {}) | {"seconds": round(seconds, 1), "rows": [row.document() for row in rows]}
    )
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def line(row: Row) -> str:
    """One pool as it is printed when it is done."""
    if row.cause:
        return f"{row.spec.name}: {row.cause}"
    candidates = ", ".join(
        f"{made.author}{'' if made.right else ' (wrong)'} {row.verdicts[made.candidate_id]}" for made in row.candidates
    )
    wins = f"right wins {_wins(row, row.now)}, without probes {_wins(row, row.without_probes)}"
    probes = " ".join(f"{end.kind}{'' if end.telling else ' (holds before)'}" for end in row.probes)
    return f"{row.spec.name}: {candidates}; {wins}; probes: {probes or 'none'}; {row.seconds:.0f} s"


def table(rows: Sequence[Row]) -> Table:
    """A row a pool: how often the right one wins at each honesty; how many wrong ones win as verified."""
    titles = ("pool", "candidates", "probes", "right wins", "without probes", "before")
    made = Table(*titles, "wrong verified", "without probes", "seconds", box=None, pad_edge=False)
    for row in rows:
        if row.cause:
            made.add_row(row.spec.name, f"[red]{row.cause[:100]}[/red]")
            continue
        candidates = ", ".join(f"{one.author} {row.verdicts[one.candidate_id][0]}" for one in row.candidates)
        wrong = [sum(end.wrong_verified for end in by.values()) for by in (row.now, row.without_probes)]
        made.add_row(
            row.spec.name,
            candidates,
            " ".join(row.spec.probes),
            _wins(row, row.now),
            _wins(row, row.without_probes),
            _wins(row, row.before),
            *(str(number or "") for number in wrong),
            f"{row.seconds:.0f}",
        )
    return made


def shares(rows: Sequence[Row]) -> Table:
    """The shares side by side, of the fleet as `fleet run` has it and of what it is compared with."""
    told = figures(rows)
    made = Table("", *(suffix.strip("_").replace("_", " ") or "now" for suffix in SIDES), box=None, pad_edge=False)
    names = [name for name in told if f"{name}_without_probes" in told]
    for name in names:
        made.add_row(name, *(f"{told[name + suffix]}" for suffix in SIDES))
    return made


def _wins(row: Row, by: Mapping[float, Selected]) -> str:
    if not row.has_right:
        return "none is right"
    return " ".join(f"{end.right / end.draws:.2f}" for end in by.values())


def _plain(by: Mapping[float, Selected]) -> dict[str, dict[str, int]]:
    return {
        str(honesty): {name: getattr(end, name) for name in Selected.__dataclass_fields__}
        for honesty, end in by.items()
    }


def _share(counts: Iterable[tuple[int, int]]) -> float | None:
    pairs = list(counts)
    total = sum(of for _, of in pairs)
    return round(sum(number for number, _ in pairs) / total, 4) if total else None
