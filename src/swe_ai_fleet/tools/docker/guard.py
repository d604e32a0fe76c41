"""The arguments that no operation of the docker tool has, refused with a reason rather than as unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.tools.definition import Definition, Holder
from swe_ai_fleet.tools.docker.policy import refuse_never


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedOperation:
    """A definition that says why, where an argument asks for what no container gets; implements `Definition`."""

    inner: Definition

    @property
    def spec(self) -> OperationSpec:
        return self.inner.spec

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments as the operation takes them. Raises ToolRefusal, ToolFailure."""
        known = cast("Mapping[str, object]", self.spec.parameters.get("properties", {}))
        refuse_never({name: value for name, value in arguments.items() if name not in known})
        return self.inner.validate(arguments)

    async def run(self, toolkit: Holder, arguments: Mapping[str, object]) -> ToolResult:
        """Carry out one call."""
        return await self.inner.run(toolkit, arguments)
