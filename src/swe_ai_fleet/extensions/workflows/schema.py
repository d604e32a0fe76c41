"""The JSON schema of a workflow's file, for editors and for the reader, which checks it first.

Violations of the schema are reported in plain words.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, cast

from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.text import nearest
from swe_ai_fleet.domain.workflow import AgentMode, JsonValue, NodeType, json_type
from swe_ai_fleet.extensions.workflows.conditions import OPS
from swe_ai_fleet.extensions.workflows.documents import DocumentPath, Problem
from swe_ai_fleet.extensions.workflows.runner import INPUT_TYPES

Schema = Mapping[str, Any]

ID = "^[A-Za-z][A-Za-z0-9_-]{0,63}$"
ID_HINT = "letters, digits, '_' and '-', at most 64, a letter first"
MAX_NODES = 500
MAX_EDGES = 2_000
MAX_AGENTS = 32
MAX_RETRIES = 20
MAX_SECONDS = 30 * 24 * 3600
_REFERENCE = "May hold references: ${inputs.NAME}, ${nodes.ID.output.FIELD}, ${item}."


def _text(description: str, **more: object) -> Schema:
    return {"type": "string", "description": description, **more}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _count(description: str, most: int, least: int = 0) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


def _seconds(description: str) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": MAX_SECONDS, "description": description}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _fields(properties: Mapping[str, Schema], *required: str, **more: object) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [*required],
        "additionalProperties": False,
        **more,
    }


_AGENT = _fields(
    {
        "model": _text("Name of a model, or of a model profile of the fleet; empty: the default."),
        "tools": _texts("Names of the tools offered where use_tools is on."),
        "use_memory": _flag("Whether memories are recalled for it, and its answer is remembered."),
        "use_tools": _flag("Whether it may call tools."),
        "role": _text("Role of the agent in a council."),
        "mode": _text(
            "answer: a text; deliberate: candidates are made and judged; orchestrate: one is delivered.",
            enum=[mode.value for mode in AgentMode],
        ),
        "system_prompt": _text("The system prompt of the model."),
        "agents": _count("Number of agents; each makes one candidate.", MAX_AGENTS, 1),
        "rounds": _count("Rounds of peer review.", 10),
        "checks": _texts("Command lines whose success is required of a candidate."),
        "max_iterations": _count("Most replies of the model; 0: the default limit.", 1000),
    }
)
_COMMON: Mapping[str, Schema] = {
    "id": _text("Unique in its workflow.", pattern=ID),
    "type": _text("The kind of node.", enum=[kind.value for kind in NodeType]),
    "description": _text("Explains the node to people."),
    "on_error": _text(
        "fail: the run ends; continue: it goes on with the output {error: ...}.", enum=["fail", "continue"]
    ),
    "breakpoint": _flag("Whether the run pauses before it."),
    "timeout_seconds": _seconds("Time limit of one attempt; 0: none."),
}
_TRIES: Mapping[str, Schema] = {
    "retries": _count("Most retries after failures.", MAX_RETRIES),
    "retry_seconds": _seconds("The wait before the first retry, doubled each time."),
}
_QUERY = _text(f"The query; empty: the input query and the outputs of the nodes before it. {_REFERENCE}")
_ARGUMENTS: Schema = {"type": "object", "description": f"Its inputs. {_REFERENCE}"}
_KINDS: Mapping[NodeType, tuple[Mapping[str, Schema], tuple[str, ...]]] = {
    NodeType.AGENT: (
        {
            "agent_config": _AGENT,
            "query": _QUERY,
            **_TRIES,
        },
        (),
    ),
    NodeType.TOOL: (
        {"tool": _text("Name of the tool.", minLength=1), "arguments": _ARGUMENTS, **_TRIES},
        ("tool",),
    ),
    NodeType.APPROVAL: ({"prompt": _text(f"The question to the person. {_REFERENCE}", minLength=1)}, ("prompt",)),
    NodeType.BRANCH: (
        {
            "cases": {
                "type": "array",
                "minItems": 1,
                "items": {"$ref": "#/$defs/case"},
                "description": "The label of the first case that holds selects the edges that are followed.",
            }
        },
        ("cases",),
    ),
    NodeType.MAP: (
        {
            "over": _text("A reference to the list."),
            "node": {"$ref": "#/$defs/item"},
            "max_parallel": _count("How many items at a time; 0: all.", 1000),
        },
        ("over", "node"),
    ),
    NodeType.WORKFLOW: (
        {
            "workflow": {
                "type": ["string", "object"],
                "description": "Name of a workflow, or a workflow itself.",
                "if": {"type": "object"},
                "then": {"$ref": "#/$defs/workflow"},
            },
            "inputs": _ARGUMENTS,
        },
        ("workflow",),
    ),
}
_CONDITION: Schema = {
    "type": ["string", "object"],
    "description": "A comparison; a reference alone tests whether it is truthy.",
    "if": {"type": "object"},
    "then": _fields(
        {
            "ref": _text("A reference to the value."),
            "op": _text("The comparison.", enum=[*OPS]),
            "value": {"description": "The value to compare with; conditions for not, all and any."},
        }
    ),
}
_INPUT: Schema = {
    "type": ["string", "object"],
    "if": {"type": "string"},
    "then": {"enum": [*INPUT_TYPES]},
    "else": _fields(
        {
            "type": _text("A JSON schema type.", enum=[*INPUT_TYPES]),
            "description": _text("Explains the input to people."),
            "required": _flag("Whether a run needs it; an input with a default is never required."),
            "default": {"description": "Its value where a run does not set it."},
        }
    ),
}
_WORKFLOW: Mapping[str, Schema] = {
    "name": _text("Its name.", pattern=ID),
    "description": _text("Its purpose."),
    "inputs": {
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/input"},
        "description": "The inputs of a run.",
    },
    "nodes": {"type": "array", "minItems": 1, "maxItems": MAX_NODES, "items": {"$ref": "#/$defs/node"}},
    "edges": {"type": "array", "maxItems": MAX_EDGES, "items": {"$ref": "#/$defs/edge"}},
    "outputs": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "The outputs of a run by name, as references.",
    },
}


def _node(*required: str) -> Schema:
    kinds: list[Schema] = []
    for kind, (own, needed) in _KINDS.items():
        properties = {**_COMMON, **own}
        kinds.append(
            {
                "if": {"properties": {"type": {"const": kind.value}}, "required": ["type"]},
                "then": _fields(properties, *needed),
            }
        )
    return {"type": "object", "properties": dict(_COMMON), "required": [*required], "allOf": kinds}


@cache
def workflow_schema() -> Schema:
    """The JSON schema (2020-12) of a workflow's file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Workflow",
        "$ref": "#/$defs/workflow",
        "$defs": {
            "workflow": _fields(_WORKFLOW, "name", "nodes"),
            "node": _node("id", "type"),
            "item": _node("type"),
            "edge": _fields(
                {
                    "source": _text("Id of the node that ends first."),
                    "target": _text("Id of the node that may begin afterwards."),
                    "label": _text("Followed only for this case of a branch, or this decision of a person."),
                },
                "source",
                "target",
            ),
            "case": _fields(
                {"label": _text("The label of its edges.", pattern=ID), "when": {"$ref": "#/$defs/condition"}},
                "label",
            ),
            "condition": _CONDITION,
            "input": _INPUT,
        },
    }


_MAX_PROBLEMS = 100


def _nearest_key(key: str, strange: list[str]) -> str:
    close = get_close_matches(key, [name[:64] for name in strange], n=1, cutoff=0.6)
    return f"is {close[0]!r} meant to be it?" if close else ""


def shape_problems(value: JsonValue) -> list[Problem]:
    """The violations of the schema in a value."""
    from jsonschema import Draft202012Validator

    validator: Any = Draft202012Validator(cast("Any", workflow_schema()))
    errors = validator.iter_errors(value)
    problems: list[Problem] = []
    for error in errors:
        problems.extend(_problems(error))
        if len(problems) >= _MAX_PROBLEMS:
            break
    # For a node of a known kind, faults in the common fields are reported twice.
    return [*dict.fromkeys(problems)]


def _problems(error: Any) -> list[Problem]:
    path: DocumentPath = tuple(error.absolute_path)
    instance: Any = error.instance
    wanted: Any = error.validator_value
    name = path[-1] if path else "the workflow"
    match error.validator:
        case "additionalProperties":
            names = [*error.schema["properties"]]
            whose = _owner_of(path, instance)
            return [
                Problem(path=(*path, key), message=f"{whose} has no {key[:60]!r}", hint=nearest(key, names))
                for key in instance
                if key not in names
            ]
        case "required":
            whose, strange = (
                _owner_of(path, instance),
                [key for key in instance if key not in error.schema["properties"]],
            )
            return [
                Problem(path=path, message=f"{whose} needs {key!r}", hint=_nearest_key(key, strange))
                for key in wanted
                if key not in instance
            ]
        case "type":
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return [Problem(path=path, message=f"{name} must be of type {kinds}, not {json_type(instance)}")]
        case "enum":
            names = [str(each) for each in wanted]
            return [
                Problem(path=path, message=f"{name} cannot be {instance!r:.60}", hint=nearest(str(instance), names))
            ]
        case "pattern":
            hint = ID_HINT if wanted == ID else ""
            return [Problem(path=path, message=f"{instance!r:.60} is not a valid {name}", hint=hint)]
        case "minimum":
            return [Problem(path=path, message=f"{name} is at least {wanted}, not {instance}")]
        case "maximum":
            return [Problem(path=path, message=f"{name} is at most {wanted}, not {instance}")]
        case "minLength" | "minItems":
            return [Problem(path=path, message=f"{name} is empty")]
        case "maxItems":
            return [Problem(path=path, message=f"there are at most {wanted} {name}, not {len(instance)}")]
        case _:
            return [Problem(path=path, message=f"{name}: {error.message[:200]}")]


def _owner_of(path: DocumentPath, instance: JsonValue) -> str:
    fields = mapping(instance)
    match path:
        case ():
            return "the workflow"
        case (*_, "workflow"):
            return "a workflow"
        case (*_, "nodes", int()) | (*_, "node"):
            return f"a node of type {fields['type']}" if isinstance(fields.get("type"), str) else "a node"
        case (*_, "edges", int()):
            return "an edge"
        case (*_, "cases", int()):
            return "a case"
        case (*_, "inputs", str()):
            return "an input"
        case _:
            return str(path[-1])
