"""What of a run's operations its model is shown: few at first, more when it asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from swe_ai_fleet.agents.repair.names import Names
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.tools.operation import signature
from swe_ai_fleet.tools.policy import Policy

REQUEST_TOOLS = "request_tools"
_MOST_NAMES = 50
_MOST_LISTED = 120


class Offer:
    """The schemas that go out with each request, in an order that only ever grows at its end.

    A model server keeps the work it did on a prompt's beginning; a schema that changed its place would waste it.

    Args:
        specs: Every operation of the run.
        policy: Says which of them it may be shown.
        answer: The operation that ends the run; always shown.
        idle: Names of those that are shown only when they are asked for, all named by `request_tools`.
        unlisted: Names among them that are not named there: they lack what they need here.
    """

    def __init__(
        self,
        specs: Sequence[OperationSpec],
        policy: Policy,
        *,
        answer: OperationSpec,
        idle: Collection[str] = frozenset(),
        unlisted: Collection[str] = frozenset(),
    ) -> None:
        self._known: dict[str, OperationSpec] = {spec.name: spec for spec in specs if policy.offers(spec)}
        hidden = [spec for name, spec in self._known.items() if name in idle]
        listed = [spec for spec in hidden if spec.name not in unlisted]
        shown = [spec for name, spec in self._known.items() if name not in idle]
        self.request: OperationSpec | None = None
        if hidden and policy.offers(request := _request_spec(listed)):
            self.request = request
            shown.append(request)
        self.specs: tuple[OperationSpec, ...] = (*shown, answer)
        self._names = Names(self._known.values())

    def show(self, arguments: Mapping[str, object]) -> ToolResult:
        """Show the operations of these `names` from the next request on; a toolkit's name stands for all of its own."""
        names = arguments.get("names")
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(name, str) for name in cast("list[object]", names))
        ):
            error = f"names must be a list of names. Signature: {signature(self.request or _request_spec(()))}"
            return ToolResult(success=False, operation=REQUEST_TOOLS, error=error, outcome=Outcome.INVALID)
        lines: list[str] = []
        found = False
        for name in cast("list[str]", names)[:_MOST_NAMES]:
            specs, line = self._meant(name)
            found = found or bool(specs)
            lines += [self._shown(spec) for spec in specs] or [line]
        if len(cast("list[str]", names)) > _MOST_NAMES:
            lines.append(f"Only the first {_MOST_NAMES} names were looked at.")
        text = "\n".join(dict.fromkeys(lines))
        if not found:
            return ToolResult(success=False, operation=REQUEST_TOOLS, error=text, outcome=Outcome.INVALID)
        return ToolResult(success=True, operation=REQUEST_TOOLS, content=text)

    def _meant(self, name: str) -> tuple[list[OperationSpec], str]:
        reading = self._names.read(name, lambda _name, _alias: False)
        if reading.name:
            return [self._known[reading.name]], ""
        kit = [spec for spec in self._known.values() if spec.tool == name.strip().lower() != ""]
        near = [each for each in reading.near if each in self._known]
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        return kit, f"There is no tool {name[:64]!r} for this run.{guess}"

    def _shown(self, spec: OperationSpec) -> str:
        if spec in self.specs:
            return f"{spec.name} is shown already."
        self.specs = (*self.specs, spec)
        return f"{signature(spec)}: {first_line(spec)}"


def first_line(spec: OperationSpec) -> str:
    """The first line of a description."""
    return spec.description.strip().partition("\n")[0]


def _request_spec(listed: Sequence[OperationSpec]) -> OperationSpec:
    names = [spec.name for spec in listed[:_MOST_LISTED]]
    names += [f"and {len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []
    return OperationSpec(
        name=REQUEST_TOOLS,
        tool=REQUEST_TOOLS,
        operation=REQUEST_TOOLS,
        description=f"Show what more tools do, which can then be called: {', '.join(names)}",
        parameters={
            "type": "object",
            "properties": {
                "names": {"type": "array", "items": {"type": "string"}, "description": "Names from the list above."}
            },
            "required": ["names"],
            "additionalProperties": False,
        },
        read_only=True,
    )
