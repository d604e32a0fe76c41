"""The tests of a Python project run once in the sandbox, with the packages of this interpreter."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.sandbox import open_workspace

_PACKAGES = "/opt/packages"
_SECONDS = 120.0
_BAD = re.compile(r"^(?:FAILED|ERROR) (\S+(?: [^-\s]\S*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The tests that fail or cannot run; whether the run got to its end with at least one test."""

    bad: tuple[str, ...]
    ended: bool


async def run_pytest(tree: Path, tests: Sequence[str] = ()) -> Outcome:
    """Run a tree's tests, all or some, without a network."""
    environment = Environment(
        mounts=(Mount(source=sysconfig.get_path("purelib"), target=_PACKAGES),),
        variables={"PYTHONPATH": f"/workspace/src:/workspace:{_PACKAGES}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        python_prefix=sys.base_prefix,
    )
    options = ("-q", "--tb=no", "-rfE", "--color=no", "-p", "no:cacheprovider", "-o", "addopts=")
    async with open_workspace(tree, environment=environment) as workspace:
        result = await workspace.run(
            Command(argv=("python3", "-m", "pytest", *options, *tests), timeout_seconds=_SECONDS, merge_stderr=True)
        )
    text = result.stdout.text()
    return Outcome(bad=tuple(dict.fromkeys(_BAD.findall(text))), ended=result.exit_code in (0, 1))
