"""What a node is given, and what a workflow gives."""

from __future__ import annotations

from collections.abc import Mapping

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_type import json_type
from swe_ai_fleet.domain.workflow import JsonValue, Node, NodeStatus, NodeType, Workflow
from swe_ai_fleet.workflows.conditions import condition_references
from swe_ai_fleet.workflows.references import (
    BadReference,
    Scope,
    looked_up,
    resolved,
    resolved_text,
)
from swe_ai_fleet.workflows.values import exact_json

DEFAULT_QUERY = "${inputs.query}"
"""Of an agent that has none of its own."""


def inputs_of(node: Node, scope: Scope) -> Mapping[str, JsonValue]:
    """What a node is given, references resolved. Raises InvalidRequest (BadReference) where that fails."""
    match node.type:
        case NodeType.AGENT:
            return {"query": resolved_text(node.query or DEFAULT_QUERY, scope)}
        case NodeType.TOOL:
            return _each(node.arguments, scope)
        case NodeType.APPROVAL:
            return {"prompt": resolved_text(node.prompt, scope)}
        case NodeType.BRANCH:
            return _looked_at(node, scope)
        case NodeType.MAP:
            items = resolved(node.over, scope)
            if not isinstance(items, list):
                raise InvalidRequest(
                    f"a map goes over a list, not over a value of type {json_type(items)}", field="over"
                )
            return {"items": items}
        case NodeType.WORKFLOW:
            return _each(node.inputs, scope)


def outputs_of(workflow: Workflow, scope: Scope, *, last: list[str]) -> Mapping[str, JsonValue]:
    """What a workflow gives: the outputs it names, else those of its last nodes that were not skipped, by id.

    Raises InvalidRequest where one of them fails.
    """
    if workflow.outputs:
        outputs: dict[str, JsonValue] = {}
        for name, text in workflow.outputs.items():
            try:
                outputs[name] = resolved(text, scope)
            except InvalidRequest as error:
                raise InvalidRequest(f"output {name}: {error}", field=f"outputs.{name}") from error
    else:
        ended = {name: scope.nodes[name] for name in last}
        outputs = {name: value.output for name, value in ended.items() if value.status != NodeStatus.SKIPPED}
    exact_json(outputs, "outputs")
    return outputs


def _each(values: Mapping[str, JsonValue], scope: Scope) -> Mapping[str, JsonValue]:
    found: dict[str, JsonValue] = resolved(values, scope)
    return found


def _looked_at(node: Node, scope: Scope) -> Mapping[str, JsonValue]:
    """What the conditions of a branch look at, as far as it is there."""
    found: dict[str, JsonValue] = {}
    for case in node.cases:
        for reference in condition_references(case.when) if case.when else ():
            try:
                found[reference.text] = looked_up(reference, scope)
            except BadReference:
                continue
    return found
