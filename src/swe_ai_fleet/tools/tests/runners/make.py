"""`make test`: whatever it runs, with the reports that can be recognised in its output."""

from __future__ import annotations

import re

from swe_ai_fleet.tools.failure import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import shown
from swe_ai_fleet.tools.tests.runners.detection import MAKEFILES
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.plan import Plan, not_installed

_TARGET = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./+-]{0,199}")


def make_plan(inventory: Inventory, directory: str, target: str, base: tuple[str, ...] = ("make", "test")) -> Plan:
    """How to make a target. Raises ToolRefusal for what make could take for an option or a variable; ToolFailure."""
    if not _TARGET.fullmatch(target):
        if target.startswith(("-", "@")) or "=" in target:
            raise ToolRefusal(f"target {shown(target)} looks like an option or a variable of make's; give a target")
        raise ToolFailure(f"{shown(target)} is no target: letters, digits and . _ / + - only")
    prefix = "" if directory == "." else f"{directory}/"
    if not any(prefix + name in inventory.files for name in MAKEFILES):
        raise ToolFailure(f"there is no Makefile in {shown(directory)}; use tests_run or shell_run_command")
    words = (*base[:-1], target)
    return Plan(
        framework="make",
        argv=words,
        told=words,
        cwd=directory,
        absent=not_installed("make", "make"),
        stream="output",
    )
