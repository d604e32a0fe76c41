"""Environments: interpreter, variables and PATH of a repository's commands, and how they were built.

Where rules do not find an environment, an agent does, in an environment run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.command import NetworkGrant
from swe_ai_fleet.domain.task import EnvironmentSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProposal:
    """Set-up commands that run after the detected ones, and a test command (empty: the detected one).

    `notes` are the agent's findings, `source` names its run. Untrusted: the commands run where the repository's own
    build code does, and nowhere else.
    """

    setup: tuple[str, ...] = ()
    test_command: str = ""
    notes: str = ""
    source: str = ""

    def amending(self, spec: EnvironmentSpec) -> EnvironmentSpec:
        """The specification with the proposal: the caller's set-up commands run first, its test command wins."""
        return replace(
            spec, setup=(*spec.setup, *self.setup), test_command=spec.test_command.strip() or self.test_command
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRun:
    """The result of an environment run.

    Attributes:
        agent_id: Its run in the log.
        answered: Whether it finished; otherwise a later execution tries again.
        proposal: What it proposes; None where there is nothing to try.
        kept: Whether the proposal is used, because the tests of the untouched commit do better with it.
        reason: Why it is kept or not, in words.
        before: The baseline without it, in a line.
        after: The baseline with it; empty where it was not tried.
        usage: What the run spent.
    """

    agent_id: str
    answered: bool = False
    proposal: EnvironmentProposal | None = None
    kept: bool = False
    reason: str = ""
    before: str = ""
    after: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory of the host shown read-only inside the sandbox."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRoot:
    """A container image unpacked on this node: the root of sandboxes, shared by all workspaces.

    `digest` is the image's id (`sha256:…` of its configuration), `path` its root on this host. `user` and `group` are
    the numeric ids of commands inside, `directory` is where the workspace appears as well (empty: only at its usual
    place), `shell` the name of its shell for command lines.
    """

    digest: str
    path: str
    user: int = 0
    group: int = 0
    directory: str = ""
    shell: str = "sh"
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDecision:
    """One decision about an environment, in words, and the file of the repository that led to it."""

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
    """One command of a build: its purpose, the file that led to it, how it ended.

    `message` has the last lines of its output where it failed, and a remedy; `seconds` is its wall-clock time.
    """

    purpose: str
    command: str
    outcome: StepOutcome
    source: str = ""
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReport:
    """How an environment was built: the decisions, the result of each step, and what is missing.

    `python` is the interpreter's version, empty where there is none. `left_out` names what could not be installed, each
    with its reason in one line. `learned` is the proposal of an environment run, where one was used. `seconds` is the
    time of the whole build, even if it was taken from the cache later. `installed` has the Python packages of an index
    with their versions and hashes, as lines for pip; `installed_npm` has npm's, as NAME@VERSION INTEGRITY.
    """

    python: str = ""
    decisions: tuple[EnvironmentDecision, ...] = ()
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
    git tree of the whole commit that it was made for, `recipe_key` identifies everything that the rules made it from.

    `path` holds directories as commands see them, put first on PATH. `test_command` is the argv found in the
    repository, empty where there is none; `notes` describe the environment to agents, `report` its build to people.
    `python_prefix` is the installation of the interpreter on the host, which the sandbox shows without its packages;
    empty: the usual one. Without `network` commands reach only their own loopback. With an `image` the root is the
    image's, with a writable layer for each workspace.
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
    image: ImageRoot | None = None
    cached: bool = False
