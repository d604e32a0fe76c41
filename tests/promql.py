"""What a PromQL expression names: enough of its grammar to find metrics and labels, and to notice what is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from prometheus_client.metrics_core import Metric

_GROUPED = re.compile(r"\b(?:by|without) ?\(([^)]*)\)")
_METRIC = re.compile(r"\b([A-Za-z_:][\w:]*)\b(?:\{([^}]*)\})?(?!\s*\()")
_FILES = Path(__file__).parents[1] / "deploy" / "observability"
_TARGETS = {"job", "instance"}
"""Labels that Prometheus adds to whatever it scrapes."""
_WORDS = frozenset(("and", "or", "unless"))


@dataclass(frozen=True, slots=True)
class Named:
    """A metric as an expression names it, with the labels that it picks by."""

    metric: str
    labels: frozenset[str]


def named(expression: str) -> tuple[set[Named], set[str]]:
    """The metrics of an expression, and the labels that it groups by. Raises ValueError for what does not fit."""
    plain = re.sub(r"\[(?:\$__rate_interval|\d+[smhd])\]", "", re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression))
    grouped = {label for labels in _GROUPED.findall(plain) for label in re.findall(r"\w+", labels)}
    plain = _GROUPED.sub("", plain)
    found = {
        Named(metric, frozenset(re.findall(r"(\w+) ?[=!]", picked)))
        for metric, picked in _METRIC.findall(plain)
        if metric not in _WORDS
    }
    if not found or any(plain.count(one) != plain.count(other) for one, other in ("()", "{}")) or "[" in plain:
        raise ValueError(f"no whole expression: {expression}")
    return found, grouped


def by_series(families: Iterable[Metric]) -> Mapping[str, Metric]:
    """Families by the names of their series."""
    suffixes = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}
    return {f"{family.name}{part}": family for family in families for part in suffixes.get(family.type, ("",))}


def expressions() -> list[tuple[str, str]]:
    """What dashboards and alerts ask for, and where."""
    asked: list[tuple[str, str]] = []
    for path in sorted((_FILES / "grafana").glob("*.json")):
        panels = json.loads(path.read_text())["panels"]
        asked += [(f"{path.stem}: {panel['title']}", one["expr"]) for panel in panels for one in panel["targets"]]
    for group in yaml.safe_load((_FILES / "prometheus" / "alerts.yaml").read_text())["groups"]:
        asked += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in group["rules"]]
    return asked


def faults(asked: Sequence[tuple[str, str]], told: Mapping[str, Metric]) -> list[str]:
    """What is asked for and told by nobody, and what of the fleet's own is told and shown nowhere."""
    recorded = {name for name, _ in asked if name.startswith("fleet:")}
    wrong: list[str] = []
    for where, expression in asked:
        metrics, grouped = named(expression)
        labels: set[str] = {"le"}
        for one in metrics:
            if one.metric in recorded:
                continue
            if one.metric == "up":
                labels |= _TARGETS
                continue
            family = told.get(one.metric)
            if family is None:
                wrong.append(f"{where}: nobody tells {one.metric}")
                continue
            own = _TARGETS | {label for sample in family.samples for label in sample.labels}
            labels |= own if family.samples else grouped
            if family.samples and not one.labels <= own:
                wrong.append(f"{where}: {one.metric} has no label {sorted(one.labels - own)}")
        if not grouped <= labels:
            wrong.append(f"{where}: nothing has the label {sorted(grouped - labels)}")
    shown = {one.metric for _, expression in asked for one in named(expression)[0]}
    families = {family.name for name, family in told.items() if name in shown}
    ours = {family.name for name, family in told.items() if name.startswith("fleet_")}
    return wrong + [f"{name} is shown nowhere" for name in sorted(ours - families)]
