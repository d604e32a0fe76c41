"""What commands of a repository find when they run: interpreter, variables, PATH; and how that came to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.environment_run import EnvironmentProposal
from swe_ai_fleet.domain.network import NetworkGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory of the host shown read-only inside the sandbox."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One thing that was decided about an environment, in words, and the file of the repository that it stands in."""

    what: str
    source: str = ""


class StepOutcome(StrEnum):
    """How a step of a build ended."""

    DONE = "done"
    REPLACED = "replaced"
    """It failed, and smaller or other steps took its place."""
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStep:
    """One command of a build: what it was for, the file that it was decided from, how it ended.

    `message` has the last lines of its output where it failed, and what would help; `seconds` is its wall-clock time.
    """

    purpose: str
    command: str
    outcome: StepOutcome
    source: str = ""
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReport:
    """How an environment came to be: what was decided, what each step did, what is missing.

    `python` is the interpreter's version, empty where there is none. `left_out` names what could not be installed, each
    with its reason in one line. `learned` is what an environment run found out, as far as it was used. `seconds` is
    the time of the whole build, however often it was taken from the cache. `installed` has the Python packages of an
    index with their versions and hashes, as lines for pip; `installed_npm` has npm's, as NAME@VERSION INTEGRITY.
    """

    python: str = ""
    decisions: tuple[Decision, ...] = ()
    steps: tuple[BuildStep, ...] = ()
    test_command: tuple[str, ...] = ()
    test_source: str = ""
    left_out: tuple[str, ...] = ()
    learned: EnvironmentProposal | None = None
    seconds: float = 0.0
    installed: tuple[str, ...] = ()
    installed_npm: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment that is ready to use. `key` identifies it in the cache; empty for the bare sandbox. `tree` is the
    git tree of the whole commit that it was made for, `recipe_key` the name of all that rules made it from.

    `path` holds directories as commands see them, put first on PATH. `test_command` is the argv found in the
    repository, empty where there is none; `notes` tell an agent in a line each what there is, `report` tells people how
    it was made. `python_prefix` is the installation of the interpreter on the host, which the sandbox shows without the
    packages in it; empty: the usual one. Without `network` commands reach nothing but themselves.
    """

    key: str = ""
    recipe_key: str = ""
    tree: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    path: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    test_command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    report: EnvironmentReport = field(default_factory=EnvironmentReport)
    python_prefix: str = ""
    network: NetworkGrant | None = None
    cached: bool = False
