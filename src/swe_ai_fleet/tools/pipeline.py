"""The pipeline of every operation: validate, policy, audit, run, mask and truncate, audit."""

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
"""Recorded characters of an argument's name and of a call's id, both of which models write."""

WHOLE = "whole_output"
"""The key, in a result's metadata, of the path at which an agent can read the whole output."""

SHOWN = "shown_output"
"""The key, in a result's metadata, of the text to show in place of the content, which is stored as if it were cut."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one run's tools: seconds of one command, characters of one observation, bytes of one file.

    An observation that is too long is cut to its head and tail; with `beginning_only`, to its beginning.
    """

    command_timeout_seconds: float = 300.0
    observation_chars: int = 16_000
    max_file_bytes: int = 10 * 1024 * 1024
    beginning_only: bool = False


class Pipeline:
    """Runs operations for one agent run; toolkits that share it share policy, audit trail and limits.

    Args:
        trail: The audit trail of each call; by default one in memory.
        policy: Which calls are allowed; by default all those of the role DEV.
        mask: Replaces secrets in arguments and output before anything is stored or shown.
        store: Stores the whole output where the observation is cut; None stores nothing.
        cache: Answers identical read-only calls; None: every call is run.
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
        """The same pipeline with another policy, and with another audit `trail` if one is given."""
        pipeline = copy(self)
        pipeline.policy, pipeline.trail = policy, trail or self.trail
        return pipeline

    async def call(
        self, definition: Definition, toolkit: CalledToolkit, arguments: Mapping[str, object], *, call_id: str = ""
    ) -> ToolResult:
        """Run one call with unchecked arguments; its audited result. Only a cancellation or a bug raises."""
        spec, started_at = definition.spec, time.monotonic()
        call_id = self._mask(call_id)[:MAX_NAME_CHARS]
        try:
            # Models write lone surrogates, which no log, file or message can hold.
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
            if isinstance(error, ToolRefusal):  # an argument asks for something that the tool never does
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
            # A call that ended before the cancellation is recorded with its result.
            cancelled = _failed(spec, Outcome.CANCELLED, "the run was cancelled")
            record.abandon(result or replace(cancelled, duration=time.monotonic() - started_at))
            raise
        except BaseException as bug:
            broken = _failed(spec, Outcome.ERROR, f"the call was broken off by a fault: {type(bug).__name__}")
            record.abandon(result or replace(broken, duration=time.monotonic() - started_at))
            raise
        final = self._cut(result, artifact, limit)
        if final.outcome is Outcome.REFUSED:
            # A rule of the tool refused the call, not the run's policy.
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
            # The audit uses the outcome, the model success: where a tool contradicts itself, the worse one counts.
            outcome = Outcome.ERROR if result.outcome is Outcome.SUCCESS else result.outcome
            return replace(result, success=False, outcome=outcome)
        return result

    def _limit(self, spec: OperationSpec) -> int:
        """The limit of a result's observation, in characters."""
        return min(self.limits.observation_chars, spec.observation_chars or self.limits.observation_chars)

    async def _stored(self, result: ToolResult, limit: int) -> str:
        """Store the masked output where the observation will not hold all of it; the digest of the stored output."""
        if self._store is None or (len(result.content) <= limit and SHOWN not in result.metadata):
            return result.artifact
        try:
            return (await self._store(result.content.encode("utf-8", "replace"))).digest
        except FleetError as error:
            # The operation has still happened; only the operator needs to know that its output was not stored.
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
        # In this order: a pair of surrogates becomes a character that may be part of a secret.
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
        """The entries under masked names, numbered where masking makes two the same."""
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
