"""Whether a document has the shape of a workflow: keys and types, as the schema has them, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

from swe_ai_fleet.domain.json_type import json_type
from swe_ai_fleet.domain.workflow import JsonValue
from swe_ai_fleet.workflows.documents import Path, Problem
from swe_ai_fleet.workflows.schema import ID, ID_HINT, workflow_schema

_MOST = 100


def nearest(name: str, known: list[str]) -> str:
    """A hint that names what may have been meant, or what there is."""
    close = get_close_matches(name[:64], known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"there are: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}" if known else ""


def _meant(key: str, strange: list[str]) -> str:
    close = get_close_matches(key, [name[:64] for name in strange], n=1, cutoff=0.6)
    return f"is {close[0]!r} meant to be it?" if close else ""


def shape_problems(value: JsonValue) -> list[Problem]:
    """What the schema says against a value."""
    from jsonschema import Draft202012Validator

    validator: Any = Draft202012Validator(cast("Any", workflow_schema()))
    errors = validator.iter_errors(value)
    found: list[Problem] = []
    for error in errors:
        found.extend(_problems(error))
        if len(found) >= _MOST:
            break
    # Where a node's kind is known, what holds for all kinds is said twice.
    return [*dict.fromkeys(found)]


def _problems(error: Any) -> list[Problem]:
    path: Path = tuple(error.absolute_path)
    instance, wanted = error.instance, error.validator_value
    name = path[-1] if path else "the workflow"
    match error.validator:
        case "additionalProperties":
            known = [*error.schema["properties"]]
            whose = _whose(path, instance)
            return [
                Problem(path=(*path, key), message=f"{whose} has no {key[:60]!r}", hint=nearest(key, known))
                for key in cast("Mapping[str, Any]", instance)
                if key not in known
            ]
        case "required":
            whose, strange = _whose(path, instance), [key for key in instance if key not in error.schema["properties"]]
            return [
                Problem(path=path, message=f"{whose} needs {key!r}", hint=_meant(key, strange))
                for key in wanted
                if key not in instance
            ]
        case "type":
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return [Problem(path=path, message=f"{name} must be of type {kinds}, not {json_type(instance)}")]
        case "enum":
            known = [str(each) for each in wanted]
            return [
                Problem(path=path, message=f"{name} cannot be {instance!r:.60}", hint=nearest(str(instance), known))
            ]
        case "pattern":
            hint = ID_HINT if wanted == ID else ""
            return [Problem(path=path, message=f"{instance!r:.60} is no {name}", hint=hint)]
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


def _whose(path: Path, instance: JsonValue) -> str:
    fields = cast("Mapping[str, Any]", instance if isinstance(instance, Mapping) else {})
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
