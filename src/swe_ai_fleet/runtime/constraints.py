"""Constraints as library callers write them: a plain mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import cast

from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import CheckSpec, Constraints

_LIMITS = frozenset(field.name for field in fields(Limits))
_OWN = frozenset(field.name for field in fields(Constraints)) - {"limits", "checks", "metadata"}


def read_constraints(wanted: Mapping[str, object]) -> Constraints:
    """The constraints of a mapping; names that are not ours are kept as metadata. Raises InvalidRequest.

    Limits stand beside the others (`max_iterations`, `timeout_seconds`, …); a check is a command or a mapping with
    `command` and, if wanted, `name`, `timeout_seconds`, `required`, `expected_exit_code`.
    """
    plain: dict[str, object] = {name: wanted[name] for name in _OWN & wanted.keys()}
    plain["limits"] = {name: wanted[name] for name in _LIMITS & wanted.keys()}
    checks = wanted.get("checks", ())
    if not isinstance(checks, list | tuple):
        raise InvalidRequest("checks is no list", field="constraints.checks")
    plain["checks"] = [_check(check) for check in cast("list[object]", checks)]
    known = _OWN | _LIMITS | {"checks", "metadata"}
    metadata = dict(cast("Mapping[str, object]", wanted.get("metadata") or {}))
    metadata |= {name: value for name, value in wanted.items() if name not in known}
    plain["metadata"] = {name: str(value) for name, value in metadata.items()}
    try:
        return from_plain(Constraints, plain)
    except ValueError as error:
        raise InvalidRequest(f"the constraints are malformed: {error}", field="constraints") from None


def _check(check: object) -> object:
    if isinstance(check, str):
        return CheckSpec(name=check, command=check)
    if isinstance(check, dict) and "command" in check:
        return {"name": cast("dict[str, object]", check)["command"], **cast("dict[str, object]", check)}
    raise InvalidRequest("a check is a command, or a mapping with one", field="constraints.checks")
