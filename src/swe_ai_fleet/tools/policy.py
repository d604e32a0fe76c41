"""Policy: which operation a run may call, with which paths, and whether a person should see one call first."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from swe_ai_fleet.domain.json_values import is_array
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import OperationSpec, Risk
from swe_ai_fleet.tools.shell_risk import shell_risks

PATH_ARGUMENTS = frozenset({"path", "paths", "destination", "source", "directory"})
"""Arguments of these names are paths of the workspace in every operation."""

MOUNT = "/workspace/"
"""Where commands see the workspace. Models write such paths; file tools treat them as relative to the workspace."""
SHELL = "shell_run_command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of one run.

    `allowed` and `denied` hold operation names or tool names (`files`, `shell_run_command`); `denied` wins, and an
    empty `allowed` means all. `allowed_paths` are globs: operations that write are refused outside them.
    """

    role: Role = Role.DEV
    read_only: bool = False
    allowed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    allowed_paths: tuple[str, ...] = ()

    def offers(self, spec: OperationSpec) -> bool:
        """Whether the operation is shown to the model at all."""
        return not self._refusal(spec)

    def refusal(self, spec: OperationSpec, arguments: Mapping[str, object]) -> str:
        """The reason why a call is refused, for the model and the audit; empty if it is allowed."""
        return self._refusal(spec) or self._path_refusal(spec, arguments)

    def _refusal(self, spec: OperationSpec) -> str:
        if {spec.name, spec.tool} & self.denied:
            return f"{spec.name} is denied for this task"
        if self.allowed and not {spec.name, spec.tool} & self.allowed:
            return f"{spec.name} is not among the tools allowed for this task"
        if self.role not in spec.roles:
            return f"{spec.name} is not for the role {self.role}"
        if self.read_only and (not spec.read_only or spec.executes or spec.network):
            return f"{spec.name} is not available: this run may only read"
        return ""

    def _path_refusal(self, spec: OperationSpec, arguments: Mapping[str, object]) -> str:
        if spec.read_only or not self.allowed_paths:
            return ""
        for name in PATH_ARGUMENTS & arguments.keys():
            for path in _paths(arguments[name]):
                if not path_allowed(path, self.allowed_paths):
                    allowed = ", ".join(self.allowed_paths)
                    return f"{name} {path!r} lies outside the paths allowed for this task: {allowed}"
        return ""


def _paths(value: object) -> tuple[str, ...]:
    """The paths in an argument: none, one, or a list of them."""
    if value is None:
        return ()
    if is_array(value):
        return tuple(str(path) for path in value)
    return (str(value),)


def path_allowed(path: str, globs: tuple[str, ...]) -> bool:
    """Whether a glob matches a path (relative to the repository) or a directory above it."""
    normal = posixpath.normpath(path.removeprefix(MOUNT))  # `src/../x` is not in src
    return any(fnmatchcase(normal, glob) or normal.startswith(glob.rstrip("/*") + "/") for glob in globs)


def risks(spec: OperationSpec, arguments: Mapping[str, object]) -> tuple[str, ...]:
    """The reasons why a call is risky: the operation's declared traits, or the text of a shell command; () if harmless.

    Unknown commands are risky.
    """
    if spec.name == SHELL:
        command = arguments.get("command")
        return shell_risks(command) if isinstance(command, str) else ("unknown: there is no command to look at",)
    reasons: list[str] = []
    if spec.risk is Risk.HIGH:
        reasons.append(f"{spec.name} is declared as of high risk")
    if spec.network and not spec.read_only:
        reasons.append(f"{spec.name} changes something outside the workspace")
    return tuple(reasons)
