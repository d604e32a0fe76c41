"""The JSON schema of a workflow's file: what editors help with, and what the reader checks first.

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
        "use_memory": _flag("Whether what is remembered is recalled for it, and its answer remembered."),
        "use_tools": _flag("Whether it may call tools."),
        "role": _text("Role of the agent in a council."),
        "mode": _text(
            "answer: a text; deliberate: candidates are made and judged; orchestrate: one is delivered.",
            enum=[mode.value for mode in AgentMode],
        ),
        "system_prompt": _text("What the model is told first."),
        "agents": _count("How many make a candidate each.", MAX_AGENTS, 1),
        "rounds": _count("Rounds of peer review.", 10),
        "checks": _texts("Command lines whose success is required of a candidate."),
        "max_iterations": _count("Most replies of the model; 0: the usual limit.", 1000),
    }
)
_COMMON: Mapping[str, Schema] = {
    "id": _text("Unique in its workflow.", pattern=ID),
    "type": _text("What the node does.", enum=[kind.value for kind in NodeType]),
    "description": _text("For people who read it."),
    "on_error": _text(
        "fail: the run ends; continue: it goes on with the output {error: ...}.", enum=["fail", "continue"]
    ),
    "breakpoint": _flag("Whether the run pauses before it."),
    "timeout_seconds": _seconds("Of one try; 0: none."),
}
_TRIES: Mapping[str, Schema] = {
    "retries": _count("How often it is tried again after a failure.", MAX_RETRIES),
    "retry_seconds": _seconds("The wait before the second try, doubled each time."),
}
_QUERY = _text(f"What it is asked; empty: the input query and what comes before it. {_REFERENCE}")
_ARGUMENTS: Schema = {"type": "object", "description": f"What it is given. {_REFERENCE}"}
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
    NodeType.APPROVAL: ({"prompt": _text(f"What the person is asked. {_REFERENCE}", minLength=1)}, ("prompt",)),
    NodeType.BRANCH: (
        {
            "cases": {
                "type": "array",
                "minItems": 1,
                "items": {"$ref": "#/$defs/case"},
                "description": "The first one that holds names the edges that are followed.",
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
    "description": "A comparison; a reference alone asks whether that is truthy.",
    "if": {"type": "object"},
    "then": _fields(
        {
            "ref": _text("A reference to what is looked at."),
            "op": _text("The comparison.", enum=[*OPS]),
            "value": {"description": "What it is compared with; conditions for not, all and any."},
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
            "description": _text("For people who give it."),
            "required": _flag("Whether a run must be given it; not where it has a default."),
            "default": {"description": "What it is where it is not given."},
        }
    ),
}
_WORKFLOW: Mapping[str, Schema] = {
    "name": _text("Its name.", pattern=ID),
    "description": _text("What it is for."),
    "inputs": {
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/input"},
        "description": "What a run is given.",
    },
    "nodes": {"type": "array", "minItems": 1, "maxItems": MAX_NODES, "items": {"$ref": "#/$defs/node"}},
    "edges": {"type": "array", "maxItems": MAX_EDGES, "items": {"$ref": "#/$defs/edge"}},
    "outputs": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "What a run gives, by name: references.",
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
                    "source": _text("Id of the node that ends."),
                    "target": _text("Id of the node that may begin then."),
                    "label": _text("Followed only where the branch chose this, or a person decided so."),
                },
                "source",
                "target",
            ),
            "case": _fields(
                {"label": _text("What its edges are labelled.", pattern=ID), "when": {"$ref": "#/$defs/condition"}},
                "label",
            ),
            "condition": _CONDITION,
            "input": _INPUT,
        },
    }


_MOST = 100


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
        if len(problems) >= _MOST:
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
