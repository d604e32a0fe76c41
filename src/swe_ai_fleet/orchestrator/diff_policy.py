"""Policy on a diff: what a candidate may not contain, whatever its tests say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.task import Constraints
from swe_ai_fleet.tools.policy import path_allowed

MAX_PATCH_BYTES = 1024 * 1024
MAX_CHANGED_LINES = 5_000
_SECRET_SHAPES = (
    ("a private key", re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----")),
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a GitHub token", re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36}\b")),
    ("a GitLab token", re.compile(r"\bglpat-[A-Za-z0-9_-]{20}\b")),
    ("a Slack token", re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,72}")),
    ("an API key", re.compile(r"\bsk-[A-Za-z0-9_-]{32,128}\b")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffPolicy:
    """The verdict, and the files that the diff leaves in place (for lint)."""

    result: CheckResult
    files: tuple[str, ...] = ()


def diff_policy(patch: bytes, constraints: Constraints) -> DiffPolicy:
    """Hold a diff against the task's allowed paths and the fleet's own rules (size, secrets, binary files)."""
    if len(patch) > MAX_PATCH_BYTES:
        return _verdict((f"the patch has {len(patch)} bytes; at most {MAX_PATCH_BYTES} are accepted",))
    try:
        files = PatchSet(patch.decode("utf-8", "replace").splitlines(keepends=True))
    except UnidiffParseError as error:
        return _verdict((f"the patch can't be read: {error}",))
    violations: list[str] = []
    changed = sum(file.added + file.removed for file in files)
    if changed > MAX_CHANGED_LINES:
        violations.append(f"{changed} changed lines; at most {MAX_CHANGED_LINES} are accepted")
    for file in files:
        path = str(file.path)
        if constraints.allowed_paths and not path_allowed(path, constraints.allowed_paths):
            violations.append(f"{path} lies outside the allowed paths")
        if file.is_binary_file:
            violations.append(f"{path} is a binary file")
        added = (str(line.value) for hunk in file for line in hunk if line.is_added)
        violations += [f"{path} adds what looks like {what}" for what in _secrets(added)]
    return _verdict(violations, tuple(str(file.path) for file in files if not file.is_removed_file))


def _secrets(lines: Iterable[str]) -> list[str]:
    text = "".join(line[:10_000] for line in lines)
    return [what for what, shape in _SECRET_SHAPES if shape.search(text)]


def _verdict(violations: Iterable[str], files: tuple[str, ...] = ()) -> DiffPolicy:
    problems = tuple(violations)
    return DiffPolicy(
        result=CheckResult(
            kind=CheckKind.POLICY,
            name="policy",
            passed=not problems,
            score=float(not problems),
            message="; ".join(problems[:5]),
            problems=problems,
        ),
        files=files,
    )
