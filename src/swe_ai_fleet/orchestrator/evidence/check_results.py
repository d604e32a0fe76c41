"""Results of checks: policy violations, the verdict with its reasons, and results as they are stored.

The output is cut in the result and complete in the object store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

import structlog

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import CheckKind, CheckReport, CheckResult, Verdict
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.task import Constraints
from swe_ai_fleet.domain.text import shortened, well_formed
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.files.paths import quoted
from swe_ai_fleet.tools.truncation import beginning, truncate

ALLOW = "policy.allow"
"""The key in a task's metadata for concerns, separated by commas, that are only warnings for this task."""

_MAX_PATH_CHARS = 200
_log = structlog.get_logger(__name__)


class Concern(StrEnum):
    """The kind of a violation; a task may name it in its metadata under `policy.allow`."""

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
    """One violation, with its place. Without `required` it is a warning, which lowers the score but refutes nothing."""

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
        path = self.path if self.path.isprintable() and len(self.path) <= _MAX_PATH_CHARS else quoted(self.path)
        return f"{path}:{self.line}" if self.line else path


def allowed_concerns(constraints: Constraints) -> frozenset[str]:
    """The concerns that a task's metadata turn into warnings; form, paths, secrets and modes cannot be."""
    words = constraints.metadata.get(ALLOW, "").replace(";", ",").split(",")
    return frozenset(word.strip().lower() for word in words) - _NEVER_ALLOWED


_MOST_REASONS = 6
_REASON_CHARS = 400
_RUNS = (CheckKind.DRY_RUN, CheckKind.COMMAND)


def verdict_of(results: Sequence[CheckResult]) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on a candidate and its reasons, the strongest first.

    Refuted: a required check fails. Verified: a test or check fails without the change and passes with it, and no
    required check fails. Unverified: neither.
    """
    failed = [result for result in results if result.required and not result.passed and not result.skipped_reason]
    if failed:
        return Verdict.REFUTED, _bounded(f"{result.name}: {result.message or 'failed'}" for result in failed)
    showing = [result for result in results if result.shown]
    rest = [result for result in results if result.kind in _RUNS and not result.shown]
    if showing:
        return Verdict.VERIFIED, _bounded(f"{result.name}: {result.message}" for result in (*showing, *rest))
    if not rest:
        return Verdict.UNVERIFIED, ("no check ran",)
    return Verdict.UNVERIFIED, _bounded(f"{result.name}: {result.skipped_reason or result.message}" for result in rest)


def _bounded(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(shortened(text, _REASON_CHARS) for text in islice(reasons, _MOST_REASONS))


def no_evidence(candidate_id: str, error: FleetError) -> CheckReport:
    """The report on a candidate whose evidence could not be gathered."""
    missing = CheckResult(kind=CheckKind.DRY_RUN, name="evidence", passed=False, message=str(error))
    return CheckReport(
        candidate_id=candidate_id,
        results=(missing,),
        verdict=Verdict.UNVERIFIED,
        reasons=(f"no evidence could be gathered: {error}",),
    )


OUTPUT_CHARS = 8_000
MESSAGE_CHARS = 2_000
PROBLEM_CHARS = 500
WHOLE_OUTPUT = "output_artifact"
"""The key in a result's details for the digest under which `GetArtifact` has the whole output."""


async def storable(
    result: CheckResult, *, mask: SecretMask, store: Callable[[bytes], Awaitable[BlobRef]]
) -> CheckResult:
    """A result as it is stored: secrets masked, sizes bounded, the whole output by reference where it was cut."""

    def masked(text: str) -> str:
        return mask(well_formed(text))

    output = masked(result.output)
    details = {name: beginning(masked(text), MESSAGE_CHARS) for name, text in result.details.items()}
    if len(output) > OUTPUT_CHARS:
        try:
            details[WHOLE_OUTPUT] = (await store(output.encode("utf-8", "replace"))).digest
        except FleetError as error:
            # The check is valid all the same; the missing output is the operator's concern.
            _log.warning("evidence.output_not_stored", check=result.name, reason=error.message)
    return replace(
        result,
        message=beginning(masked(result.message), MESSAGE_CHARS),
        output=truncate(output, OUTPUT_CHARS),
        problems=tuple(beginning(masked(problem), PROBLEM_CHARS) for problem in result.problems),
        skipped_reason=beginning(masked(result.skipped_reason), MESSAGE_CHARS),
        details=details,
    )
