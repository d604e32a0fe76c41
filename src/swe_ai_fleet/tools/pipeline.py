"""The way every operation goes: validate, policy, audit, run, mask and truncate, audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import structlog

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.json_values import is_array, is_mapping, mapping, with_texts
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.definition import CalledToolkit, Definition, ToolFailure, ToolRefusal
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.result_cache import ResultCache
from swe_ai_fleet.tools.secrets import Secrets
from swe_ai_fleet.tools.truncation import beginning, bounded, truncate

MAX_ERROR_CHARS = 4_000
MAX_NAME_CHARS = 200
"""Of an argument's name and of a call's id, which models write, so much is recorded."""

WHOLE = "whole_output"
"""The metadata of a result whose whole output an agent can read: where."""

SHOWN = "shown_output"
"""The metadata of a result of which less is shown than its content, which is kept like that of one that is cut."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one run's tools: seconds of one command, characters of one observation, bytes of one file.

    Of an observation that is too long, head and tail are kept; with `beginning_only`, its beginning.
    """

    command_timeout_seconds: float = 300.0
    observation_chars: int = 16_000
    max_file_bytes: int = 10 * 1024 * 1024
    beginning_only: bool = False


class Pipeline:
    """Carries out operations for one agent run; toolkits that share it share policy, audit trail and limits.

    Args:
        trail: Where each call is recorded. Without one, an audit trail in memory.
        policy: What may be called. Without one, everything a DEV may.
        mask: Replaces secrets in arguments and output before anything is stored or shown.
        store: Keeps whole outputs whose observation was cut; None keeps nothing.
        cache: What identical read-only calls are answered from; None answers none.
    """

    def __init__(
        self,
        *,
        trail: AuditTrail | None = None,
        policy: Policy | None = None,
        mask: SecretMask | None = None,
        store: Callable[[bytes], Awaitable[BlobRef]] | None = None,
        limits: ToolLimits | None = None,
        cache: ResultCache | None = None,
    ) -> None:
        self.trail = trail or AuditTrail()
        self.policy = policy or Policy()
        self.limits = limits or ToolLimits()
        self._secrets = mask or Secrets()
        self._store = store
        self._cache = cache or ResultCache(max_bytes=0)

    def under(self, policy: Policy, *, trail: AuditTrail | None = None) -> Pipeline:
        """The same pipeline under another policy: a sub-agent's calls go into the audit of its run.

        With a `trail` its calls are recorded there.
        """
        twin = copy(self)
        twin.policy, twin.trail = policy, trail or self.trail
        return twin

    async def call(
        self, definition: Definition, toolkit: CalledToolkit, arguments: Mapping[str, object], *, call_id: str = ""
    ) -> ToolResult:
        """One call from its raw arguments to its audited result. Only a cancellation or a bug raises."""
        spec, started_at = definition.spec, time.monotonic()
        call_id = self._mask(call_id)[:MAX_NAME_CHARS]
        try:
            # Models write halves of surrogate pairs, which no log, file or message can hold.
            arguments = mapping(with_texts(arguments, well_formed))
        except ValueError:
            record = self.trail.open(spec, arguments={}, secret={}, call_id=call_id)
            problem = "the arguments are nested too deeply"
            return record.close(_failed(spec, Outcome.INVALID, problem), reason=problem)
        recorded = self._recorded(toolkit.recorded(arguments))
        record = self.trail.open(spec, arguments=recorded, secret=arguments, call_id=call_id)
        try:
            checked = definition.validate(arguments)
        except FleetError as error:
            problem = truncate(self._mask(error.message), MAX_ERROR_CHARS)
            if isinstance(error, ToolRefusal):  # an argument asks for what the tool never does
                return record.close(_failed(spec, Outcome.REFUSED, problem), PolicyDecision.REFUSED, problem)
            return record.close(_failed(spec, Outcome.INVALID, problem), reason=problem)
        if refusal := self.policy.refusal(spec, checked):
            reason = truncate(self._mask(refusal), MAX_ERROR_CHARS)
            return record.close(_failed(spec, Outcome.REFUSED, reason), PolicyDecision.REFUSED, reason)
        result: ToolResult | None = None
        try:
            if not spec.read_only:
                await record.start()
            with self._cache.call(spec, toolkit, checked, revision=self.trail.revision) as lookup:
                result = lookup.result or await self._run(definition, toolkit, checked)
            result = self._masked(result, time.monotonic() - started_at)
            lookup.keep(result)
            artifact = await self._stored(result, limit := self._limit(spec))
        except asyncio.CancelledError:
            # What had ended before the run was cancelled has happened, and stands in the audit as such.
            cancelled = _failed(spec, Outcome.CANCELLED, "the run was cancelled")
            record.abandon(result or replace(cancelled, duration=time.monotonic() - started_at))
            raise
        except BaseException as bug:
            broken = _failed(spec, Outcome.ERROR, f"the call was broken off by a fault: {type(bug).__name__}")
            record.abandon(result or replace(broken, duration=time.monotonic() - started_at))
            raise
        final = self._cut(result, artifact, limit)
        if final.outcome is Outcome.REFUSED:
            # A tool's own rule said no, rather than the run's policy.
            return record.close(final, PolicyDecision.REFUSED, final.error, result.content)
        return record.close(final, reason="answered from the cache" if final.cached else "", whole=result.content)

    async def _run(self, definition: Definition, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> ToolResult:
        spec = definition.spec
        limit = None if spec.executes else spec.time_limit_seconds
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                result = await definition.run(toolkit, arguments)
        except (FleetError, OSError, ValueError) as error:
            if scope.expired():
                return _failed(spec, Outcome.TIMEOUT, f"{spec.name} did not finish within {limit:g} seconds")
            outcome = error.outcome if isinstance(error, ToolFailure) else Outcome.ERROR
            return _failed(spec, outcome, str(error) or type(error).__name__)
        if result.success != (result.outcome is Outcome.SUCCESS):
            # The audit goes by the outcome, the model by success: where a tool says two things, the worse one counts.
            outcome = Outcome.ERROR if result.outcome is Outcome.SUCCESS else result.outcome
            return replace(result, success=False, outcome=outcome)
        return result

    def _limit(self, spec: OperationSpec) -> int:
        """The characters that are shown of a result."""
        return min(self.limits.observation_chars, spec.observation_chars or self.limits.observation_chars)

    async def _stored(self, result: ToolResult, limit: int) -> str:
        """The digest under which the whole masked output is kept where the observation will not hold it."""
        if self._store is None or (len(result.content) <= limit and SHOWN not in result.metadata):
            return result.artifact
        try:
            return (await self._store(result.content.encode("utf-8", "replace"))).digest
        except FleetError as error:
            # The operation has happened all the same; that its output could not be kept is for the operator.
            _log.warning("tool.output_not_stored", operation=result.operation, reason=self._mask(error.message))
            return result.artifact

    def _masked(self, result: ToolResult, duration: float) -> ToolResult:
        return replace(
            result,
            duration=duration,
            content=self._mask(result.content),
            error=self._mask(result.error),
            metadata=mapping(self._mask_json(result.metadata)),
            artifact=self._mask(result.artifact),
        )

    def _cut(self, result: ToolResult, artifact: str, limit: int) -> ToolResult:
        metadata = dict(result.metadata)
        content = str(metadata.pop(SHOWN, result.content))
        if self.limits.beginning_only:
            content = beginning(content, limit)
        else:
            content = truncate(content, limit, str(metadata.get(WHOLE, "")))
        error = truncate(result.error, MAX_ERROR_CHARS)
        if content is result.content and error is result.error and artifact is result.artifact:
            return result
        return replace(
            result,
            content=content,
            error=error,
            metadata=metadata,
            truncated=result.truncated or content is not result.content,
            artifact=artifact,
        )

    def _mask(self, text: str) -> str:
        # In this order: halves of a pair of surrogates become the character that a secret may hold.
        return self._secrets(well_formed(text))

    def _recorded(self, arguments: Mapping[str, object]) -> dict[str, object]:
        named = self._mask_names(arguments, limit=MAX_NAME_CHARS)
        return {name: bounded(self._mask_json(value), MAX_ERROR_CHARS) for name, value in named}

    def _mask_json(self, value: object) -> object:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int | float):
            masked = self._mask(repr(value))
            return value if masked == repr(value) else masked
        if is_mapping(value):
            return {name: self._mask_json(part) for name, part in self._mask_names(value)}
        if is_array(value):
            return [self._mask_json(part) for part in value]
        return self._mask(str(value))

    def _mask_names(self, mapping: Mapping[Any, object], *, limit: int = 0) -> Iterator[tuple[str, object]]:
        """The entries under masked names, each under one of its own."""
        used: set[str] = set()
        for key, value in mapping.items():
            name = masked = self._mask(str(key))[: limit or None]
            number = 1
            while name in used:
                number += 1
                name = f"{masked} ({number})"
            used.add(name)
            yield name, value


def _failed(spec: OperationSpec, outcome: Outcome, error: str) -> ToolResult:
    return ToolResult(success=False, operation=spec.name, error=error, outcome=outcome)
