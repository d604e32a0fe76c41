"""What a patch does that it should not, and how much that weighs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from swe_ai_fleet.domain.task import Constraints
from swe_ai_fleet.tools.files.paths import shown

ALLOW = "policy.allow"
"""In a task's metadata: concerns, separated by commas, that are only warned of for this task."""

_MAX_PATH_CHARS = 200


class Concern(StrEnum):
    """Of what kind a violation is; a task may name it in its metadata under `policy.allow`."""

    FORM = "form"
    PATHS = "paths"
    SECRETS = "secrets"
    SIZE = "size"
    BINARIES = "binaries"
    MODES = "modes"
    LINKS = "links"
    TESTS = "tests"
    SETTINGS = "settings"
    SUPPRESSIONS = "suppressions"
    GENERATED = "generated"
    LOCKS = "locks"
    LICENCES = "licences"
    PIPELINES = "pipelines"
    COMMENTS = "comments"


_NEVER_ALLOWED = frozenset({Concern.FORM, Concern.PATHS, Concern.SECRETS, Concern.MODES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One violation, with its place. One that is not `required` is a warning: it costs score and decides nothing."""

    concern: Concern
    text: str
    path: str = ""
    line: int = 0
    required: bool = True

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.text) if part)

    @property
    def place(self) -> str:
        """`path:line` as far as they are known."""
        if not self.path:
            return ""
        path = self.path if self.path.isprintable() and len(self.path) <= _MAX_PATH_CHARS else shown(self.path)
        return f"{path}:{self.line}" if self.line else path


def allowed_concerns(constraints: Constraints) -> frozenset[str]:
    """What a task's metadata makes a warning of; form, paths, secrets and modes always stay."""
    words = constraints.metadata.get(ALLOW, "").replace(";", ",").split(",")
    return frozenset(word.strip().lower() for word in words) - _NEVER_ALLOWED


def weighed(violation: Violation, allowed: frozenset[str]) -> Violation:
    """The violation as it counts for a task that allows some concerns."""
    return replace(violation, required=False) if violation.concern in allowed else violation
