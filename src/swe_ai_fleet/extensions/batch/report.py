"""The report of a batch: rates with intervals, agreement of the fleet's verdicts with the benchmark's, usage.

Also the files of the benchmarks' own programs: SWE-bench's `report.json` for a task and its summary of a run, and the
parts of Harbor's `result.json` that a fleet knows.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from swe_ai_fleet.cli.tables import plain_table
from swe_ai_fleet.domain.candidate import Verdict
from swe_ai_fleet.extensions.batch.records import TaskRecord
from swe_ai_fleet.extensions.batch.results import ResultRow, write_atomically
from swe_ai_fleet.extensions.batch.verification import Evaluation
from swe_ai_fleet.watching.text import one_line

_Z = 1.959963984540054
"""The 97.5th percentile of the normal distribution: intervals are of 95 %."""
_OUTCOMES = {True: "passed", False: "failed", None: "no result"}
_CELL = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A number passed of a total, with the bounds of its 95 % interval."""

    passed: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.passed / self.of if self.of else 0.0

    def __str__(self) -> str:
        if not self.of:
            return "-"
        return f"{self.value:.0%} ({self.passed}/{self.of}, {self.low:.0%} to {self.high:.0%})"


def wilson(passed: int, of: int) -> Rate:
    """A pass rate with its 95 % score interval, which holds for few trials and for rates near 0 and 1 too.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    if not of:
        return Rate(passed=0, of=0, low=0.0, high=1.0)
    share, square = passed / of, _Z * _Z / of
    middle = (share + square / 2) / (1 + square)
    spread = _Z / (1 + square) * math.sqrt(share * (1 - share) / of + square / (4 * of))
    low = 0.0 if passed == 0 else max(0.0, middle - spread)
    high = 1.0 if passed == of else min(1.0, middle + spread)
    return Rate(passed=passed, of=of, low=low, high=high)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; each cell is one line of text, not Markdown."""
    lines = [
        headings,
        ("---",) * len(headings),
        *([one_line(cell, _CELL).replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def agreement(rows: Iterable[ResultRow]) -> dict[str, dict[str, int]]:
    """Counts of the hidden tests' results for verified, unverified and refuted candidates."""
    counted = Counter(
        (row.verdict, _OUTCOMES[row.best_resolved]) for row in rows if row.model_patch or row.refused_patch
    )
    return {verdict: {name: counted[verdict, name] for name in _OUTCOMES.values()} for verdict in Verdict}


def document(name: str, model: str, rows: Sequence[ResultRow], *, not_run: Mapping[str, str]) -> dict[str, Any]:
    """The report for programs. Rates are of ended tasks; a task whose tests could not be run is not resolved."""
    ended = [row for row in rows if row.is_done]
    judged = any(row.resolved is not None for row in ended)
    table = agreement(ended) if judged else {}
    right = sum(table[verdict][outcome] for verdict, outcome in _AGREE) if judged else 0
    wrong = sum(table[verdict][outcome] for verdict, outcome in _DISAGREE) if judged else 0
    verified = [row for row in ended if row.accepted and row.verdict == Verdict.VERIFIED]
    # Harbor's own mean: a task without a reward counts as 0, and so does one with a reward outside 0 to 1.
    rewards = [min(row.rewards.get("reward", 0.0), 1.0) * (row.resolved is not None) for row in ended]
    seconds = [row.seconds for row in ended]
    return {
        "batch": name,
        "model": model,
        "ended": len(ended),
        "resolved": asdict(wilson(sum(bool(row.resolved) for row in ended), len(ended))) if judged else None,
        "accepted": asdict(wilson(sum(row.accepted for row in ended), len(ended))),
        "verified": asdict(wilson(len(verified), len(ended))),
        "mean_reward": sum(rewards) / len(rewards) if any(row.rewards for row in ended) else None,
        "agreement": table,
        "agreement_rate": asdict(wilson(right, right + wrong)) if judged else None,
        "tokens": sum(row.tokens for row in ended),
        "prompt_tokens": sum(row.prompt_tokens for row in ended),
        "completion_tokens": sum(row.completion_tokens for row in ended),
        "cost": sum(row.cost for row in ended),
        "seconds": {"sum": sum(seconds), "median": median(seconds) if seconds else 0.0},
        "tasks": [
            {key: value for key, value in asdict(row).items() if key not in ("model_patch", "refused_patch")}
            for row in ended
        ],
        "not_run": dict(not_run),
    }


_AGREE = ((Verdict.VERIFIED, "passed"), (Verdict.REFUTED, "failed"))
_DISAGREE = ((Verdict.VERIFIED, "failed"), (Verdict.REFUTED, "passed"))


def _agreement_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for verdict, counts in report["agreement"].items():
        passed, failed, without = (counts[name] for name in _OUTCOMES.values())
        rows.append((verdict, str(passed), str(failed), str(without), str(wilson(passed, passed + failed))))
    return rows


_AGREEMENT = ("fleet's verdict", "passed", "failed", "no result", "passed of those with a result")


def agreement_table(report: Mapping[str, Any]) -> Table:
    """The fleet's verdicts against the benchmark's."""
    return plain_table(_AGREEMENT, _agreement_rows(report))


def _rate(value: Mapping[str, Any] | None) -> str:
    return str(Rate(**value)) if value is not None else "-"


def markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    spent = f"{report['tokens']:,} ({report['prompt_tokens']:,} + {report['completion_tokens']:,})"
    seconds = report["seconds"]
    rates = [
        ("resolved by the hidden tests", _rate(report["resolved"])),
        ("accepted by the fleet", _rate(report["accepted"])),
        ("verified by the fleet", _rate(report["verified"])),
        ("mean reward", "-" if report["mean_reward"] is None else f"{report['mean_reward']:.3f}"),
        ("tokens (prompt + completion)", spent),
        ("cost", f"{report['cost']:.4f}"),
        ("seconds (median of a task)", f"{seconds['sum']:.0f} ({seconds['median']:.1f})"),
    ]
    resolved = {True: "resolved", False: "not resolved", None: "no result"}
    tasks = [
        (
            task["instance_id"], task["status"], task["verdict"], resolved[task["resolved"]],
            ", ".join(f"{name} {value:g}" for name, value in task["rewards"].items()) or "-",
            f"{task['tokens']:,}", f"{task['seconds']:.1f}",
            "; ".join((*task["notes"], *([task["evaluation"]] if task["resolved"] is None else []))),
        )
        for task in report["tasks"]
    ]  # fmt: skip
    columns = ("task", "status", "verdict", "hidden tests", "reward", "tokens", "seconds", "notes")
    parts = [f"# Batch {one_line(report['batch'], _CELL)}, {one_line(report['model'], _CELL)}\n"]
    parts.append(markdown_table((f"of {report['ended']} tasks that ended", ""), rates))
    if report["agreement"]:
        parts.append("## Agreement\n")
        parts.append(markdown_table(_AGREEMENT, _agreement_rows(report)))
        parts.append(
            f"Verified and passed, or refuted and failed: {_rate(report['agreement_rate'])} of the candidates that "
            "were verified or refuted. The candidate is the winner, or the best one where nobody won.\n"
        )
    parts += ["## Tasks\n", markdown_table(columns, tasks)]
    if report["not_run"]:
        parts += ["## Not run\n", markdown_table(("task", "why"), report["not_run"].items())]
    parts.append("Bounds are Wilson's of 95 %. A task whose hidden tests gave no result counts as not resolved.\n")
    return "\n".join(parts)


def write_report(path: Path, report: Mapping[str, Any], rows: Sequence[ResultRow]) -> None:
    """Write the report as `.json` and `.md`, and SWE-bench's summary of the run as `.summary.json`."""
    write_atomically(path.with_suffix(".json"), json.dumps(report, indent=1) + "\n")
    write_atomically(path.with_suffix(".md"), markdown(report))
    summed = summary(rows, not_run=report["not_run"])
    write_atomically(path.with_suffix(".summary.json"), json.dumps(summed, indent=1) + "\n")


def summary(rows: Sequence[ResultRow], *, not_run: Iterable[str]) -> dict[str, Any]:
    """SWE-bench's summary of a run (its schema 2)."""
    ended = [row for row in rows if row.is_done]
    ids = {
        "completed": [row for row in ended if row.model_patch and row.resolved is not None],
        "resolved": [row for row in ended if row.resolved],
        "unresolved": [row for row in ended if row.model_patch and row.resolved is False],
        "empty_patch": [row for row in ended if not row.model_patch],
        "error": [row for row in ended if row.model_patch and row.resolved is None],
        "submitted": ended,
    }
    named = {f"{name}_ids": sorted(row.instance_id for row in group) for name, group in ids.items()}
    counted = {f"{name}_instances": len(group) for name, group in ids.items()}
    missing = sorted(not_run)
    total = len(ended) + len(missing)
    return {"total_instances": total, **counted, **named, "incomplete_ids": missing, "schema_version": 2}


def write_result(folder: Path, record: TaskRecord, row: ResultRow, evaluation: Evaluation, *, model: str) -> None:
    """Write the result file of the benchmark's own program for a task."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if record.hidden.task is None:
        report = {
            "patch_is_None": False,
            "patch_exists": bool(row.model_patch),
            "patch_successfully_applied": bool(evaluation.tests),
            "resolved": bool(row.resolved),
            "infra_failure": row.resolved is None,
            "tests_status": evaluation.tests,
        }
        write_atomically(folder / "report.json", json.dumps({row.instance_id: report}, indent=1) + "\n")
        return
    failed = None if evaluation.rewards else {"exception_type": "VerifierError", "exception_message": evaluation.reason}
    result = {
        "task_name": row.instance_id,
        "trial_name": row.task_id,
        "agent_info": {"name": "swe-ai-fleet", "version": version("swe-ai-fleet"), "model_info": {"name": model}},
        "agent_result": {
            "n_input_tokens": row.prompt_tokens,
            "n_output_tokens": row.completion_tokens,
            "cost_usd": row.cost,
            "metadata": {"verdict": row.verdict, "execution_id": row.execution_id},
        },
        "verifier_result": {"rewards": dict(evaluation.rewards)} if evaluation.rewards else None,
        "verifier_environment_mode": "separate" if record.hidden.task.separate else "shared",
        "exception_info": failed,
        "finished_at": row.finished_at,
    }
    write_atomically(folder / "result.json", json.dumps(result, indent=1) + "\n")
