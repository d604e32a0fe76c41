"""The definition of an operation for the pipeline, the same for all toolkits, and the failures of operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import ClassVar, Protocol

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult


class ToolFailure(FleetError):
    """An operation failed; the message is for the model and says what would work."""

    outcome: ClassVar[Outcome] = Outcome.ERROR


class ToolRefusal(ToolFailure):
    """A call asks for something forbidden (a path outside, a host not granted); audited as refused."""

    outcome = Outcome.REFUSED


class ToolTimeout(ToolFailure):
    """An operation's own time limit ran out; audited as timed out."""

    outcome = Outcome.TIMEOUT


@asynccontextmanager
async def time_limit(seconds: float) -> AsyncGenerator[asyncio.Timeout]:
    """Cancel the body after so many seconds without raising: afterwards `expired()` says whether that happened."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield scope
    except TimeoutError:
        if not scope.expired():
            raise


class CalledToolkit(Protocol):
    """The toolkit of a call, as the pipeline and its cache see it; `operation.Toolkit` is one."""

    lasting: bool
    """Whether what a call began may go on changing the workspace after the call's end."""

    def recorded(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The unchecked arguments as the audit may show them."""
        ...

    def shared_scope(self, spec: OperationSpec) -> str | None:
        """The scope within which a tenant's runs share results of a cacheable operation; None: they share none."""
        ...


class Definition(Protocol):
    """An operation without a workspace: its specification for models, and how a call is checked and run."""

    @property
    def spec(self) -> OperationSpec: ...

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments for `run`. Raises ToolFailure naming each problem and the signature."""
        ...

    def run(self, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> Awaitable[ToolResult]:
        """Run one call with validated arguments."""
        ...
