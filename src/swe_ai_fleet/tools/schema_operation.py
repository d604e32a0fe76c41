"""Operations whose argument schema was given as JSON, by a server or by the author of a plug-in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, cast

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.tools.definition import Holder
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.operation import signature

# A stranger's regular expression can run for ever; whoever wrote the schema checks its patterns again anyway.
_WITHOUT_PATTERNS = {"pattern": None, "patternProperties": None, "format": None}
_MAX_PROBLEMS = 5


class SchemaOperation:
    """A definition with a given schema; implements `Definition`.

    Args:
        spec: Its `parameters` must be a JSON schema (draft 2020-12) of type object. References are resolved within
            the schema only; patterns and formats are not checked. Where it does not say `additionalProperties`,
            unknown arguments are refused.
        call: Carries out one call with checked arguments.

    Raises:
        InvalidRequest: The parameters are no such schema.
    """

    def __init__(self, spec: OperationSpec, call: Callable[[dict[str, object]], Awaitable[ToolResult]]) -> None:
        self._spec = spec
        self._call = call
        if spec.parameters.get("type") != "object":
            raise InvalidRequest(f"the schema of {spec.name} is not of type object", field="parameters")
        try:
            Draft202012Validator.check_schema(dict(spec.parameters))
        except SchemaError as error:
            raise InvalidRequest(f"the schema of {spec.name}: {error.message}", field="parameters") from None

    @property
    def spec(self) -> OperationSpec:
        return self._spec

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments, unchanged. Raises ToolFailure naming each problem and the signature."""
        problems = self._unknown(arguments)
        try:
            for error in self._validator.iter_errors(dict(arguments)):
                problems.append(_problem(error))
                if len(problems) >= _MAX_PROBLEMS:
                    break
        except (Unresolvable, RecursionError) as error:
            raise ToolFailure(f"the schema of {self._spec.name} can't be followed: {error}") from None
        if problems:
            raise ToolFailure(f"{'; '.join(problems)}. Signature: {signature(self._spec)}")
        return dict(arguments)

    def run(self, toolkit: Holder, arguments: Mapping[str, object]) -> Awaitable[ToolResult]:
        """Carry out one call."""
        return self._call(dict(arguments))

    @cached_property
    def _validator(self) -> Any:
        # An empty registry: the default one would fetch what a reference names from the network.
        registry: Registry[Any] = Registry()
        kind = cast("Any", validators).extend(Draft202012Validator, _WITHOUT_PATTERNS)
        return kind(dict(self._spec.parameters), registry=registry)

    def _unknown(self, arguments: Mapping[str, object]) -> list[str]:
        if "additionalProperties" in self._spec.parameters:
            return []
        known = cast("Mapping[str, object]", self._spec.parameters.get("properties", {}))
        return [f"unexpected argument {name[:64]!r}" for name in arguments if name not in known]


def _problem(error: ValidationError) -> str:
    name = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "required" and not name:
        instance = cast("Mapping[object, object]", error.instance)
        missing = [str(key) for key in cast("list[object]", error.validator_value) if key not in instance]
        return f"missing argument {', '.join(repr(key) for key in missing)}"
    return f"argument {name!r}: {error.message[:300]}" if name else error.message[:300]
