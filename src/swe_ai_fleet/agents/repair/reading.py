"""Reading a call: its operation, its arguments, and the repairs that this took."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from swe_ai_fleet.agents.repair.argument_coercion import coerce_arguments, complete, sole_string
from swe_ai_fleet.agents.repair.arguments import read_arguments
from swe_ai_fleet.agents.repair.names import Alias, OperationNames, split_name
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.tools.builtin import ANSWER_KEYS
from swe_ai_fleet.tools.operation import signature

MAX_SHOWN_NAME = 64
_MAX_BARE_TEXT = 1000
_PLAIN = re.compile(r"""(?!(?:true|false|null|none|nan|-?infinity|[-+\d.e]+)\Z)[^{}\[\]<>"'`\r\n]+""", re.IGNORECASE)
_CUT_OFF = "; the reply was cut off because it was too long, so write less at once"

Arguments = dict[str, object] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """A call as it was read.

    `spec` is None if no operation is meant; `error` says why the call cannot be run, empty if it can be tried with
    `arguments`; `near` are operations that may have been meant. `repairs` contain no words of the model.
    """

    call: ToolCall
    spec: OperationSpec | None = None
    arguments: dict[str, object] = field(default_factory=dict[str, object])
    repairs: tuple[str, ...] = ()
    error: str = ""
    near: tuple[str, ...] = ()


class CallReader:
    """Reads calls of one set of operations; it has no other state.

    The operation `answer` ends a run; its text may be under any of the usual keys, or with `bare_answers` be the
    arguments themselves.
    """

    def __init__(self, specs: Iterable[OperationSpec], *, answer: str, bare_answers: bool = True) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._names = OperationNames(self._specs.values())
        self._answer = answer
        self._bare_answers = bare_answers

    def read(self, call: ToolCall, *, truncated: bool = False) -> Understood:
        """The meaning of the call; never raises.

        In a `truncated` reply, arguments that end too early are not repaired.
        """
        glued = "" if call.name in self._specs else split_name(call.name)[1]
        text, repairs = call.arguments, list[str]()
        if glued and text.strip() in ("", "{}", "null"):
            text, repairs = glued, ["arguments_in_name"]
            glued = ""
        parsed: Arguments | None = None
        problem = ""
        try:
            parsed, repaired = read_arguments(text, truncated=truncated)
            repairs += repaired
        except ValueError as error:
            problem = str(error)

        def fits(name: str, alias: Alias | None) -> bool:
            return parsed is not None and self._fits(parsed, name, alias)

        reading = self._names.read(call.name, fits)
        if not reading.name or glued:
            near = reading.near or ((reading.name,) if reading.name else ())
            return Understood(call=call, error=f"there is no tool {call.name[:MAX_SHOWN_NAME]!r}", near=near)
        spec = self._specs[reading.name]
        repairs = [*([reading.repair] if reading.repair else ()), *repairs]
        may_be_bare = self._bare_answers or spec.name != self._answer
        if not may_be_bare and isinstance(parsed, str):
            return self._malformed(call, spec, "it is a str")
        if parsed is None and may_be_bare and (bare := _bare_text(text, spec, truncated)):
            parsed, problem = bare, ""
            repairs.append("bare_text")
        if parsed is None:
            return self._malformed(call, spec, problem + (_CUT_OFF if truncated else ""))
        try:
            arguments, changed = self._coerced(parsed, spec, reading.alias)
        except ValueError as error:
            return self._malformed(call, spec, str(error))
        return Understood(call=call, spec=spec, arguments=arguments, repairs=(*repairs, *changed))

    def _malformed(self, call: ToolCall, spec: OperationSpec, problem: str) -> Understood:
        error = f"the arguments of {spec.name} are not a JSON object: {problem}. Signature: {signature(spec)}"
        return Understood(call=call, spec=spec, error=error)

    def _coerced(
        self, parsed: Arguments, spec: OperationSpec, alias: Alias | None
    ) -> tuple[dict[str, object], tuple[str, ...]]:
        if spec.name == self._answer and isinstance(parsed, dict) and _answers(parsed):
            return parsed, ()
        return coerce_arguments(parsed, spec, alias)

    def _fits(self, parsed: Arguments, name: str, alias: Alias | None) -> bool:
        """Whether the arguments fit the operation, under the alias or as they are."""
        spec = self._specs.get(name)
        if spec is None:
            return False
        if alias is not None:
            fields = parsed if isinstance(parsed, dict) else {}
            if any(fields.get(key) != value for key, value in alias.when.items()):
                return False
        try:
            arguments, _ = self._coerced(parsed, spec, alias)
        except ValueError:
            return False
        return _answers(arguments) if name == self._answer else complete(arguments, spec)


def _answers(arguments: dict[str, object]) -> bool:
    return any(arguments.get(key) is not None for key in ANSWER_KEYS)


def _bare_text(text: str, spec: OperationSpec, truncated: bool) -> str:
    """Text that is no JSON, as the only string of a read-only operation: a guess must not have side effects."""
    words = text.strip()
    harmless = spec.read_only and not spec.executes and not spec.network
    if truncated or not harmless or not sole_string(spec) or len(words) > _MAX_BARE_TEXT:
        return ""
    return words if _PLAIN.fullmatch(words) else ""
