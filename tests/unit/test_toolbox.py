"""The tools of a run: what is shown, what more can be asked for, and in which order calls are carried out."""

from __future__ import annotations

import json
from typing import Any

from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import Observation
from swe_ai_fleet.tools import Pipeline
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import shown_first
from swe_ai_fleet.tools.policy import Policy
from tests.conformance.replies import Noted


def call(name: str, arguments: object = None, *, call_id: str = "1") -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(call_id=call_id, model_call_id="", name=name, arguments=text)


def toolbox(*, role: Role = Role.DEV, denied: frozenset[str] = frozenset(), **options: Any) -> Toolbox:
    pipeline = Pipeline(trail=AuditTrail(), policy=Policy(role=role, denied=denied))
    kit = Noted(pipeline)
    given: dict[str, Any] = {"idle": kit.definitions.keys() - shown_first(role), **options}
    return Toolbox({kit.name: kit}, pipeline, **given)


async def asked(box: Toolbox, *names: str) -> Observation:
    (seen,) = await box.call_all([call("request_tools", {"names": list(names)})])
    return seen


def shown(box: Toolbox) -> list[str]:
    return [spec.name for spec in box.specs]


async def test_asking_for_what_is_not_there_says_what_is() -> None:
    box = toolbox()
    before = shown(box)
    seen = await asked(box, "git_lgo", "teleport")
    assert seen.result.outcome is Outcome.INVALID
    assert "There is no tool 'git_lgo' for this run. Did you mean git_log" in seen.result.error
    assert "'teleport'" in seen.result.error
    assert shown(box) == before
    for wrong in ("{}", '{"names": []}', '{"names": [5]}', '{"names": "' + "a" * 10_000 + '"}'):
        (refused,) = await box.call_all([call("request_tools", wrong)])
        assert refused.result.outcome is Outcome.INVALID
    assert shown(box) == before


async def test_what_policy_denies_can_be_neither_seen_nor_asked_for() -> None:
    box = toolbox(denied=frozenset({"git_log", "db"}))
    request = next(spec for spec in box.specs if spec.name == "request_tools")
    assert "git_log" not in request.description
    assert "db_" not in request.description
    assert not (await asked(box, "git_log", "db")).result.success
    assert not {"git_log", "db_explain"} & set(shown(box))
