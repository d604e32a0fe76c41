"""What checks printed: short in the result, whole in the object store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import CheckResult
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.truncation import beginning, truncate

OUTPUT_CHARS = 8_000
MESSAGE_CHARS = 2_000
PROBLEM_CHARS = 500
WHOLE_OUTPUT = "output_artifact"
"""In a result's details: the digest under which `GetArtifact` has the whole output."""
_log = structlog.get_logger(__name__)


async def kept(
    result: CheckResult, whole: str, *, mask: SecretMask, store: Callable[[bytes], Awaitable[BlobRef]]
) -> CheckResult:
    """A result fit to be stored: without secrets, of bounded size, the whole output by reference where it says more.

    Args:
        result: What a check came to.
        whole: Everything that was printed; empty where that is `result.output` itself.
        mask: Hides secrets.
        store: Keeps bytes.
    """

    def hidden(text: str) -> str:
        return mask(well_formed(text))

    output = hidden(result.output)
    whole = hidden(whole) if whole else output
    details = {name: beginning(hidden(text), MESSAGE_CHARS) for name, text in result.details.items()}
    if len(whole) > len(output) or len(output) > OUTPUT_CHARS:
        try:
            details[WHOLE_OUTPUT] = (await store(whole.encode("utf-8", "replace"))).digest
        except FleetError as error:
            # The check was made all the same; that its output could not be kept is for the operator.
            _log.warning("evidence.output_not_stored", check=result.name, reason=error.message)
    return replace(
        result,
        message=beginning(hidden(result.message), MESSAGE_CHARS),
        output=truncate(output, OUTPUT_CHARS),
        problems=tuple(beginning(hidden(problem), PROBLEM_CHARS) for problem in result.problems),
        skipped_reason=beginning(hidden(result.skipped_reason), MESSAGE_CHARS),
        details=details,
    )
