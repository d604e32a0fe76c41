"""What a plan may be made of: the operations that policy permits, and whether a step would be a valid call of one."""

from __future__ import annotations

import json
from collections.abc import Mapping

from swe_ai_fleet.agents.planning.reading import DraftStep, read_draft
from swe_ai_fleet.agents.repair import fitted
from swe_ai_fleet.agents.repair.aliases import Alias
from swe_ai_fleet.agents.repair.names import Names, Reading
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, Toolbox
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.plan import Plan, PlanStep
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.tools.definition import Definition
from swe_ai_fleet.tools.operation import Toolkit, signature

MAX_STEPS = 50
_MOST_PROBLEMS = 12
_MOST_OTHERS = 60


class Operations:
    """The operations of a toolbox that its policy permits, those too that the model is not shown by itself."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._found: dict[str, tuple[Toolkit, Definition]] = {
            definition.spec.name: (toolkit, definition)
            for toolkit in toolbox.toolkits.values()
            for definition in toolkit.definitions.values()
            if toolkit.pipeline.policy.offers(definition.spec)
        }
        self._shown = {spec.name for spec in toolbox.specs if spec.name in self._found}
        self._names = Names((*self.specs, FINAL_ANSWER))

    @property
    def specs(self) -> tuple[OperationSpec, ...]:
        return tuple(definition.spec for _, definition in self._found.values())

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def spec(self, step: PlanStep) -> OperationSpec | None:
        """The operation of a step, None where there is none."""
        for _, definition in self._found.values():
            if (definition.spec.tool, definition.spec.operation) == (step.tool, step.operation):
                return definition.spec
        return None

    def signatures(self) -> list[str]:
        """A line for each operation that the model is shown: how it is called and what it does."""
        shown = (self._found[name][1].spec for name in sorted(self._shown))
        return [f"{signature(spec)}: {spec.description.partition(chr(10))[0]}" for spec in shown]

    def others(self) -> list[str]:
        """The names of what is permitted beside those."""
        return sorted(self._found.keys() - self._shown)[:_MOST_OTHERS]

    def read(self, text: str) -> tuple[Plan, tuple[str, ...]]:
        """The plan in a model's reply, and everything that is wrong with it; nothing wrong, it can be carried out."""
        draft = read_draft(text)
        problems = list(draft.problems)
        steps: list[PlanStep] = []
        for number, drafted in draft.steps:
            step = self.checked(drafted)
            if isinstance(step, str):
                problems.append(f"step {number}: {step}")
            elif step is not None:
                steps.append(step)
        if len(steps) > MAX_STEPS:
            problems.append(f"it has {len(steps)} steps; {MAX_STEPS} are allowed")
        if len(problems) > _MOST_PROBLEMS:
            problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} problems more"]
        return Plan(steps=tuple(steps), reasoning=draft.reasoning), tuple(problems)

    def checked(self, drafted: DraftStep) -> PlanStep | str | None:
        """The step as it will be carried out; what is wrong with it; None for an answer, which a plan cannot know."""
        reading = self._named(drafted)
        if reading.name == FINAL_ANSWER.name:
            return None
        if reading.name not in self._found:
            name = f"{drafted.tool} {drafted.operation}".strip()[:80]
            near = [found for found in reading.near if found in self._found]
            guess = f" Did you mean {' or '.join(self._signature(found) for found in near[:2])}?" if near else ""
            return f"there is no operation {name!r}.{guess}"
        toolkit, definition = self._found[reading.name]
        spec = definition.spec
        try:
            params = fitted(drafted.params, spec, reading.alias)[0]
            json.dumps(params, allow_nan=False)
            checked = definition.validate(params)
        except FleetError as error:
            hint = "" if "Signature:" in error.message else f" Signature: {signature(spec)}"
            return f"{spec.name}: {error.message}{hint}"
        except (RecursionError, TypeError, ValueError):
            return f"{spec.name}: the params are no plain JSON. Signature: {signature(spec)}"
        verdict = toolkit.pipeline.policy.decide(spec, checked)
        if verdict.refused:
            return f"{spec.name}: {verdict.reason}"
        return PlanStep(
            tool=spec.tool,
            operation=spec.operation,
            params=params,
            why=drafted.why,
            on_failure=drafted.on_failure,
            expect=drafted.expect,
        )

    def _named(self, drafted: DraftStep) -> Reading:
        tool, operation = drafted.tool.strip(), drafted.operation.strip()
        written = [f"{tool}_{operation}", operation, tool] if tool and operation else [tool or operation]
        for name in written:
            if name in self._found or name == FINAL_ANSWER.name:
                return Reading(name=name)
        readings = [
            self._names.read(name, lambda found, alias: self._fits(found, drafted.params, alias)) for name in written
        ]
        return next((reading for reading in readings if reading.name), readings[0])

    def _fits(self, name: str, params: Mapping[str, object], alias: Alias | None) -> bool:
        if name not in self._found:
            return False
        definition = self._found[name][1]
        try:
            definition.validate(fitted(params, definition.spec, alias)[0])
        except (FleetError, RecursionError):
            return False
        return True

    def _signature(self, name: str) -> str:
        return signature(self._found[name][1].spec)
