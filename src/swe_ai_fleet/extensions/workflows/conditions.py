"""Conditions of branches: a fixed set of comparisons, not an expression language."""

from __future__ import annotations

from collections.abc import Iterator

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_array, is_list, is_mapping
from swe_ai_fleet.domain.workflow import Condition, JsonValue, json_type
from swe_ai_fleet.extensions.workflows.references import (
    BadReference,
    Reference,
    ReferenceScope,
    looked_up,
    parsed,
    references_in,
    resolved,
)

OPS = ("eq", "ne", "lt", "le", "gt", "ge", "in", "contains", "exists", "empty", "truthy", "not", "all", "any")
"""`exists`, `empty` and `truthy` test the reference alone; `not` takes a condition as its value (without one: the
reference is not truthy), `all` and `any` a list of conditions; the others compare the reference with the value."""
MAX_DEPTH = 16
_FIELDS = frozenset({"ref", "op", "value"})
_NUMBERS = ("integer", "number")


def condition_of(value: JsonValue) -> Condition:
    """A condition from JSON: `{ref, op, value}`, or a reference alone, which tests whether it is truthy.

    Raises InvalidRequest naming the fault.
    """
    match value:
        case Condition():
            return value
        case str(ref):
            return Condition(ref=ref, op="truthy")
        case _ if is_mapping(fields := value):
            if unknown := sorted(str(name) for name in fields if name not in _FIELDS):
                raise InvalidRequest(
                    f"unknown field in a condition: {unknown[0][:40]!r}", field="when", hint="ref, op and value"
                )
            ref, op = fields.get("ref", ""), fields.get("op", "eq")
            if not isinstance(ref, str) or not isinstance(op, str):
                raise InvalidRequest("ref and op of a condition must be strings", field="when")
            return Condition(ref=ref, op=op, value=fields.get("value"))
        case _:
            raise InvalidRequest(
                f"a condition is not of type {json_type(value)}", field="when", hint="{ref, op, value}"
            )


def verify(condition: Condition, depth: int = 0) -> None:
    """Raise InvalidRequest (BadReference for a reference) for a condition that can never be evaluated."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"conditions are nested more than {MAX_DEPTH} levels deep", field="when")
    if condition.op not in OPS:
        raise InvalidRequest(f"{condition.op[:40]!r} is not a comparison", field="op", hint=", ".join(OPS))
    inner = [*_inner(condition)]
    if condition.op in ("all", "any") or (condition.op == "not" and condition.value is not None):
        if condition.ref:
            raise InvalidRequest(f"{condition.op} takes conditions as its value and no ref", field="ref")
        for each in inner:
            verify(each, depth + 1)
        return
    parts = parsed(condition.ref)
    if len(parts) != 1 or not isinstance(parts[0], Reference):
        raise BadReference(
            f"ref is not a reference: {condition.ref[:60]!r}", field="ref", hint="such as ${nodes.ID.output.FIELD}"
        )
    if condition.op in ("exists", "empty", "truthy") and condition.value is not None:
        raise InvalidRequest(f"{condition.op} takes no value", field="value")


def condition_references(condition: Condition) -> Iterator[Reference]:
    """Every reference in a condition that passed `verify`."""
    if condition.ref:
        yield from references_in(condition.ref)
    inner = [*_inner(condition)]
    for each in inner:
        yield from condition_references(each)
    if not inner and condition.op not in ("all", "any"):
        yield from references_in(condition.value)


def holds(condition: Condition, scope: ReferenceScope) -> bool:
    """Whether a condition holds.

    Raises:
        BadReference: A reference names nothing, and the operation is none of `exists`, `empty`, `truthy` and `not`.
        InvalidRequest: The two values cannot be compared.
    """
    match condition.op:
        case "all":
            return all(holds(each, scope) for each in _inner(condition))
        case "any":
            return any(holds(each, scope) for each in _inner(condition))
        case "not" if condition.value is not None:
            return not all(holds(each, scope) for each in _inner(condition))
        case "exists":
            return _resolve(condition, scope)[0]
        case "empty":
            return _resolve(condition, scope)[1] in (None, "", [], {})
        case "truthy" | "not":
            return bool(_resolve(condition, scope)[1]) is (condition.op == "truthy")
        case _:
            return _compared(condition.op, resolved(condition.ref, scope), resolved(condition.value, scope))


def _inner(condition: Condition) -> Iterator[Condition]:
    match condition:
        case Condition(op="not", value=value) if value is not None:
            yield condition_of(value)
        case Condition(op="all" | "any" as op, value=value):
            if not is_array(value) or not value:
                raise InvalidRequest(f"{op} takes a list of conditions as its value", field="value")
            yield from (condition_of(each) for each in value)
        case _:
            return


def _resolve(condition: Condition, scope: ReferenceScope) -> tuple[bool, JsonValue]:
    (reference,) = references_in(condition.ref)
    try:
        return True, looked_up(reference, scope)
    except BadReference:
        return False, None


def _compared(op: str, left: JsonValue, right: JsonValue) -> bool:
    match op:
        case "eq":
            return _equal(left, right)
        case "ne":
            return not _equal(left, right)
        case "in":
            return _contains(right, left, op)
        case "contains":
            return _contains(left, right, op)
        case _:
            return _ordered(op, left, right)


def _equal(left: JsonValue, right: JsonValue) -> bool:
    # As in JSON, true does not equal 1.
    return isinstance(left, bool) is isinstance(right, bool) and left == right


def _contains(whole: JsonValue, part: JsonValue, op: str) -> bool:
    match whole:
        case str(text) if isinstance(part, str):
            return part in text
        case _ if is_list(whole):
            return any(_equal(each, part) for each in whole)
        case _ if is_mapping(whole) and isinstance(part, str):
            return part in whole
        case None:
            return False
        case _:
            raise InvalidRequest(f"{op}: a value of type {json_type(whole)} holds no {json_type(part)}", field="when")


def _ordered(op: str, left: JsonValue, right: JsonValue) -> bool:
    kinds = (json_type(left), json_type(right))
    if kinds != ("string", "string") and not all(kind in _NUMBERS for kind in kinds):
        raise InvalidRequest(
            f"{op}: values of type {kinds[0]} and {kinds[1]} cannot be compared",
            field="when",
            hint="two numbers or two texts",
        )
    match op:
        case "lt":
            return left < right
        case "le":
            return left <= right
        case "gt":
            return left > right
        case _:
            return left >= right
