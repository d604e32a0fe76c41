"""What the zoo came to: a row a project, the shares that count, a table and `zoo.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from labs.zoo.catalogue import Project
from labs.zoo.judging import Judgement
from labs.zoo.pools import Change, Pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one project."""

    project: Project
    judgement: Judgement
    pools: Pools = field(default_factory=Pools)
    seconds: float

    @property
    def baseline_ok(self) -> bool:
        """Whether the baseline says what the project's tests say by hand."""
        expected, found = self.project.expected, self.judgement
        if not expected.runs or expected.by_exit_code:
            return not found.passed and found.by_exit_code is expected.by_exit_code
        return (
            abs(found.passed - expected.passed) <= expected.tolerance
            and abs(found.failed - expected.failed) <= expected.tolerance
        )

    @property
    def env_ok(self) -> bool:
        """Whether everything was installed that the project asks for."""
        return not self.judgement.error and not self.judgement.left_out

    def document(self) -> dict[str, Any]:
        pools: dict[str, dict[str, str]] = {}
        for change in self.pools.changes:
            pools.setdefault(change.pool, {})[change.name] = change.verdict
        cause = "; ".join(filter(None, (self.project.expected.cause, self.pools.cause, self.judgement.error)))
        return {
            "name": self.project.name,
            "kind": self.project.kind,
            "version": self.project.version,
            "build": self.project.build,
            "runner": self.project.runner,
            "lock": self.project.lock,
            "expected": str(self.project.expected),
            "baseline": self.judgement.summary,
            "baseline_ok": self.baseline_ok,
            "env_ok": self.env_ok,
            "left_out": list(self.judgement.left_out),
            "fault": self.pools.mutant,
            "pools": pools,
            "changes": [asdict(change) for change in self.pools.changes],
            "seconds": round(self.seconds, 1),
            "cause": cause,
        }


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The shares over all rows, each from 0 to 1; counts where the issue asks for counts."""
    changes = [change for row in rows for change in row.pools.changes if change.verdict != "none"]
    right = [change for change in changes if change.right]
    wrong = [change for change in changes if not change.right]
    can_run = [row for row in rows if row.project.expected.runs]
    return {
        "projects": len(rows),
        "env_ok": _share([row.env_ok for row in rows]),
        "baseline_ok": _share([row.baseline_ok for row in can_run]),
        "right": len(right),
        "right_refused": _share([change.verdict == "refuted" for change in right]),
        "right_verified": _share([change.verdict == "verified" for change in right if change.shown]),
        "wrong": len(wrong),
        "wrong_accepted": sum(change.told and (change.verdict == "verified" or change.winner) for change in wrong),
        "wrong_verified_hidden": sum(not change.told and change.verdict == "verified" for change in wrong),
        "unverified": _share([change.verdict == "unverified" for change in changes]),
        "seconds": round(sum(row.seconds for row in rows), 1),
    }


def write(path: Path, rows: Sequence[Row], seconds: float) -> None:
    """All that is known so far."""
    document = figures(rows) | {"seconds": round(seconds, 1), "rows": [row.document() for row in rows]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def line(row: Row) -> str:
    """One project as it is printed when it is done."""
    mark = "ok " if row.baseline_ok else "NOT"
    verdicts = ", ".join(f"{change.pool}/{change.name} {change.verdict}" for change in row.pools.changes)
    cause = row.document()["cause"]
    return (
        f"{mark} {row.project.name}: {row.judgement.summary or row.judgement.error} "
        f"(by hand: {row.project.expected}){'; ' + verdicts if verdicts else ''}"
        f"{'; ' + cause if cause else ''}; {row.seconds:.0f} s"
    )


def table(rows: Sequence[Row]) -> Table:
    """A row a project."""
    titles = ("project", "build", "runner", "by hand", "baseline", "noticed", "hidden", "seconds")
    made = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        cells = [_verdicts(row.pools.changes, pool) for pool in ("noticed", "hidden")]
        baseline = f"{row.judgement.passed} pass, {row.judgement.failed} fail"
        made.add_row(
            row.project.name,
            row.project.build,
            row.project.runner,
            str(row.project.expected)[:40],
            baseline if row.baseline_ok else f"[red]{baseline}[/red]",
            *cells,
            f"{row.seconds:.0f}",
        )
    return made


def _verdicts(changes: Sequence[Change], pool: str) -> str:
    """Right and wrong ones by verdict: `right 2v 0u 0r, wrong 0v 1u 2r`."""
    told: list[str] = []
    for right, title in ((True, "right"), (False, "wrong")):
        found = [change.verdict for change in changes if change.pool == pool and change.right is right]
        if found:
            counts = " ".join(f"{found.count(name)}{name[0]}" for name in ("verified", "unverified", "refuted"))
            told.append(f"{title} {counts}")
    return ", ".join(told)


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
