"""Whether one call is something that a person should see first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swe_ai_fleet.domain.tool import OperationSpec, Risk
from swe_ai_fleet.tools.shell_risk import shell_risks

SHELL = "shell_run_command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Whether a call is risky, and why."""

    risky: bool
    reasons: tuple[str, ...] = ()


HARMLESS = Assessment(risky=False)


def assess(spec: OperationSpec, arguments: Mapping[str, object]) -> Assessment:
    """Judge one call by what its operation declares, a shell command by what it says. What is not known is risky."""
    reasons = _reasons(spec, arguments)
    return Assessment(risky=True, reasons=reasons) if reasons else HARMLESS


def _reasons(spec: OperationSpec, arguments: Mapping[str, object]) -> tuple[str, ...]:
    if spec.name == SHELL:
        command = arguments.get("command")
        return shell_risks(command) if isinstance(command, str) else ("unknown: there is no command to look at",)
    reasons: list[str] = []
    if spec.risk is Risk.HIGH:
        reasons.append(f"{spec.name} is declared as of high risk")
    if spec.network and not spec.read_only:
        reasons.append(f"{spec.name} changes something outside the workspace")
    return tuple(reasons)
