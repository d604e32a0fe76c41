"""The way every operation goes: validate, policy, audit, run, mask and truncate, audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from swe_ai_fleet.domain.candidate import BlobRef
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.tool import Decision, OperationSpec, Outcome, ToolResult
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.failure import ToolRefusal
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import Secrets
from swe_ai_fleet.tools.truncation import truncate

if TYPE_CHECKING:
    from swe_ai_fleet.tools.operation import Definition, Toolkit

MAX_ERROR_CHARS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one run's tools: seconds of one command, characters of one observation, bytes of one file."""

    command_timeout_seconds: float = 300.0
    observation_chars: int = 16_000
    max_file_bytes: int = 10 * 1024 * 1024


class Pipeline:
    """Carries out operations for one agent run; toolkits that share it share policy, audit trail and limits.

    Args:
        trail: Where each call is recorded. Without one, an audit trail in memory.
        policy: What may be called. Without one, everything a DEV may.
        mask: Replaces secrets in arguments and output before anything is stored or shown.
        store: Keeps whole outputs whose observation was cut; None keeps nothing.
    """

    def __init__(
        self,
        *,
        trail: AuditTrail | None = None,
        policy: Policy | None = None,
        mask: SecretMask | None = None,
        store: Callable[[bytes], Awaitable[BlobRef]] | None = None,
        limits: ToolLimits | None = None,
    ) -> None:
        self.trail = trail or AuditTrail()
        self.policy = policy or Policy()
        self.limits = limits or ToolLimits()
        self._secrets = mask or Secrets()
        self._store = store

    async def call(
        self, definition: Definition, toolkit: Toolkit, arguments: Mapping[str, object], *, call_id: str = ""
    ) -> ToolResult:
        """One call from its raw arguments to its audited result. Only a cancellation or a bug raises."""
        spec, started_at = definition.spec, time.monotonic()
        shown = self._masked(toolkit.recorded(arguments))
        record = self.trail.open(spec, arguments=shown, secret=arguments, call_id=call_id)
        try:
            checked = definition.validate(arguments)
        except FleetError as error:
            return record.close(_failed(spec, Outcome.INVALID, self._mask(error.message)))
        decision = self.policy.decide(spec, checked)
        if decision.refused:
            reason = self._mask(decision.reason)
            return record.close(_failed(spec, Outcome.REFUSED, reason), Decision.REFUSED, reason)
        try:
            if not spec.read_only:
                await record.start()
            result = await self._run(definition, toolkit, checked)
            result = replace(result, duration=time.monotonic() - started_at)
            presentable = await self._presentable(result)
        except asyncio.CancelledError:
            record.close(_failed(spec, Outcome.CANCELLED, "the run was cancelled"))
            raise
        return record.close(*presentable)

    async def _run(self, definition: Definition, toolkit: Toolkit, arguments: Mapping[str, object]) -> ToolResult:
        spec = definition.spec
        limit = None if spec.executes else spec.time_limit_seconds
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                return await definition.run(toolkit, arguments)
        except (FleetError, OSError, ValueError) as error:
            if scope.expired():
                return _failed(spec, Outcome.TIMEOUT, f"{spec.name} did not finish within {limit:g} seconds")
            outcome = Outcome.REFUSED if isinstance(error, ToolRefusal) else Outcome.ERROR
            return _failed(spec, outcome, str(error) or type(error).__name__)

    async def _presentable(self, result: ToolResult) -> tuple[ToolResult, Decision, str, str]:
        """The result as it may be shown, and the whole masked output behind it."""
        whole = self._mask(result.content)
        cut = truncate(whole, self.limits.observation_chars)
        artifact = result.artifact
        if cut is not whole and self._store is not None:
            artifact = (await self._store(whole.encode("utf-8", "replace"))).digest
        shown = replace(
            result,
            content=cut,
            error=truncate(self._mask(result.error), MAX_ERROR_CHARS),
            metadata={name: self._mask_json(value) for name, value in result.metadata.items()},
            truncated=result.truncated or cut is not whole,
            artifact=artifact,
        )
        if result.outcome is Outcome.REFUSED:
            # A tool's own rule said no, rather than the run's policy.
            return shown, Decision.REFUSED, shown.error, whole
        return shown, Decision.ALLOWED, "", whole

    def _mask(self, text: str) -> str:
        return well_formed(self._secrets(text))

    def _masked(self, arguments: Mapping[str, object]) -> dict[str, object]:
        return {well_formed(str(name)): self._mask_value(value) for name, value in arguments.items()}

    def _mask_value(self, value: object) -> object:
        if isinstance(value, str):
            return truncate(self._mask(value), MAX_ERROR_CHARS)
        if isinstance(value, bool | int | float) or value is None:
            return value
        return truncate(self._mask(repr(value)), MAX_ERROR_CHARS)

    def _mask_json(self, value: object) -> object:
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, Mapping):
            return {
                well_formed(str(name)): self._mask_json(part)
                for name, part in cast("Mapping[object, object]", value).items()
            }
        if isinstance(value, list | tuple):
            return [self._mask_json(part) for part in cast("list[object]", value)]
        return value


def well_formed(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs: models write them and file names hold them, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _failed(spec: OperationSpec, outcome: Outcome, error: str) -> ToolResult:
    return ToolResult(success=False, operation=spec.name, error=error, outcome=outcome)
