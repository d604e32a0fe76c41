"""A call as the toolbox would carry it out, before it does."""

from __future__ import annotations

from swe_ai_fleet.agents.approval_gate import Reading
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.tools.pipeline import Pipeline


class CallPreview:
    """Says what a call would do, with the toolbox's own repairs.

    Args:
        toolbox: What would carry it out.
        pipeline: The way it would go.
    """

    def __init__(self, toolbox: Toolbox, pipeline: Pipeline) -> None:
        self._toolbox = toolbox
        self._policy = pipeline.policy
        self._definitions = {
            definition.spec.name: definition
            for toolkit in toolbox.toolkits.values()
            for definition in toolkit.definitions.values()
        }

    def __call__(self, call: ToolCall, *, truncated: bool = False) -> Reading | None:
        """The call as it would be carried out; None where it would be refused, or belongs to the loop itself."""
        understood = self._toolbox.understand(call, truncated=truncated)
        definition = self._definitions.get(understood.spec.name) if understood.spec else None
        if definition is None or understood.error:
            return None
        try:
            arguments = definition.validate(understood.arguments)
        except FleetError:
            return None
        if self._policy.decide(definition.spec, arguments).refused:
            return None
        return Reading(spec=definition.spec, arguments=arguments)
