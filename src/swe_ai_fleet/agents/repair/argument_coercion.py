"""Arguments adapted to an operation's JSON schema if their meaning is unambiguous."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.agents.repair.arguments import read_object
from swe_ai_fleet.agents.repair.names import COMMENTARY, PARAMETERS, Alias
from swe_ai_fleet.domain.json_values import is_list, is_mapping, is_object, is_strings, json_or_none, mapping, strings
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.domain.workflow import json_type

Schema = Mapping[str, object]

_MOST_CHOICES = 64
_WRAPPERS = frozenset(
    {"arguments", "parameters", "params", "input", "args", "kwargs", "tool_input", "action_input", "properties"}
)
_NAMES = frozenset({"name", "tool", "tool_name", "function_name", "recipient_name"})
_BESIDE_A_WRAPPER = _NAMES | {"type", "id"}
_SPREAD = {"view_range": ("start_line", "end_line"), "line_range": ("start_line", "end_line")}
_INTEGER = re.compile(r"[+-]?\d{1,18}(?:\.0{1,9})?")
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{1,18})?")
_MOST_LEVELS = 8
_SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
SHELL = "shell_run_command"
_SAME = object()


def choices_of(schema: Schema, root: Schema) -> list[Schema]:
    """The alternatives of a schema, references resolved; of an endless schema, the first ones."""
    waiting, choices = [schema], list[Schema]()
    for _ in range(_MOST_CHOICES):
        if not waiting:
            break
        schema_choice = waiting.pop(0)
        reference = schema_choice.get("$ref")
        if isinstance(reference, str):
            waiting.append(mapping(root, "$defs", reference.removeprefix("#/$defs/")))
            continue
        parts = schema_choice.get("anyOf", schema_choice.get("oneOf"))
        kind = schema_choice.get("type")
        if is_list(parts):
            waiting += [part for part in parts if is_mapping(part)]
        elif is_list(kind):
            choices += [{**schema_choice, "type": each} for each in kind]
        else:
            choices.append(schema_choice)
    return choices or [{}]


def types_of(schema: Schema, root: Schema) -> set[str]:
    return {str(choice.get("type", "any")) for choice in choices_of(schema, root)}


def enum_of(choices: Sequence[Schema]) -> list[object]:
    listed = [choice.get("enum") for choice in choices]
    return [choice for values in listed if is_list(values) for choice in values]


def properties_of(schema: Schema) -> Mapping[str, Schema]:
    declared = mapping(schema.get("properties"))
    return {name: part for name, part in declared.items() if is_mapping(part)}


def is_open(schema: Schema) -> bool:
    """Whether an object of the schema may have fields that it does not name, so that no name is wrong."""
    return schema.get("additionalProperties", False) is not False


def complete(fields: Mapping[str, object], spec: OperationSpec) -> bool:
    """Whether the operation has all these parameters, and they include all required ones."""
    required = strings(spec.parameters.get("required"))
    return fields.keys() <= properties_of(spec.parameters).keys() and fields.keys() >= set(required)


def sole_string(spec: OperationSpec) -> str:
    """The only required parameter of the operation, if it is a string; else empty."""
    properties = properties_of(spec.parameters)
    required = strings(spec.parameters.get("required"))
    names = tuple(required) or tuple(properties)
    if len(names) != 1 or names[0] not in properties:
        return ""
    return names[0] if "string" in types_of(properties[names[0]], spec.parameters) else ""


def coerce_arguments(
    arguments: Mapping[str, object] | str, spec: OperationSpec, alias: Alias | None = None
) -> tuple[dict[str, object], tuple[str, ...]]:
    """The arguments in the form of the operation's schema, and the repairs.

    Unknown names are matched by their letters, then by usual synonyms. A value is converted if its text is of another
    type. Anything else is left to the operation's own error message. A plain string is the value of the only required
    string parameter; without one, it raises ValueError.
    """
    coercion = _Coercion(spec=spec, alias=alias)
    root = spec.parameters
    if isinstance(arguments, str):
        only = sole_string(spec)
        if not only:
            raise ValueError("it is a string")
        return {only: arguments}, (f"bare_string: {only}",)
    unwrapped = coercion.unwrapped(dict(arguments), properties_of(root))
    unwrapped = coercion.chosen(unwrapped)
    fields = coercion.fields(unwrapped, root, (), 0)
    if spec.name == SHELL and is_list(words := fields.get("command")):
        fields["command"] = coercion.line(words)
    return fields, tuple(coercion.repairs)


@dataclass(slots=True)
class _Coercion:
    spec: OperationSpec
    alias: Alias | None
    repairs: dict[str, None] = field(default_factory=dict[str, None])

    def note(self, repair: str) -> None:
        self.repairs[repair] = None

    def unwrapped(self, given: dict[str, object], properties: Mapping[str, Schema]) -> dict[str, object]:
        """Without a wrapper such as `{"arguments": {…}}`, and without the name beside it."""
        for _ in range(0 if is_open(self.spec.parameters) else 3):
            function = given.get("function")
            if "function" not in properties and set(given) - {"type", "id"} == {"function"} and is_object(function):
                given = function
                self.note("wrapper: function")
                continue
            keys = [key for key in given if key in _WRAPPERS and key not in properties]
            others = given.keys() - set(keys)
            if len(keys) != 1 or not others <= _BESIDE_A_WRAPPER or others & properties.keys():
                return given
            if not self._names_this(given, others):
                return given
            inner = given[keys[0]]
            value = read_object(inner) if isinstance(inner, str) else inner
            if isinstance(inner, str) and value is None:
                only = sole_string(self.spec) if len(given) == 1 else ""
                if only:
                    self.note(f"argument_renamed: {keys[0]} -> {only}")
                return {only: inner} if only else given
            if not is_object(value):
                return given
            given = value
            self.note(f"wrapper: {keys[0]}")
        return given

    def _names_this(self, given: Mapping[str, object], others: set[str]) -> bool:
        """Whether no name beside the arguments is that of another operation."""
        ours = _letters(self.spec.name), _letters(self.spec.operation)
        named = [_letters(str(given[key])) for key in others & _NAMES]
        return all(name.endswith(ours[0]) or name == ours[1] for name in named)

    def chosen(self, given: dict[str, object]) -> dict[str, object]:
        """Without the fields that chose the alias and those that it ignores; a range as its two ends."""
        alias, properties = self.alias, properties_of(self.spec.parameters)
        for key in list(given):
            if key in properties:
                continue
            if alias is not None and key in alias.when:
                del given[key]
            elif (key in COMMENTARY and not is_open(self.spec.parameters)) or (alias and key in alias.ignored):
                del given[key]
                self.note(f"argument_left_out: {key}")
            elif alias is not None and alias.renames.get(key, key) not in given:
                given[alias.renames[key]] = given.pop(key)
                self.note(f"argument_renamed: {key} -> {alias.renames[key]}")
            elif key in _SPREAD and not set(_SPREAD[key]) & given.keys() and set(_SPREAD[key]) <= properties.keys():
                given = self._spread(given, key)
        return given

    def _spread(self, given: dict[str, object], key: str) -> dict[str, object]:
        ends = given[key]
        if not is_list(ends) or len(ends) != 2:
            return given
        first, last = ends
        del given[key]
        given |= {_SPREAD[key][0]: first} | ({} if last == -1 else {_SPREAD[key][1]: last})
        self.note(f"argument_spread: {key}")
        return given

    def line(self, words: list[object]) -> object:
        """An argv as a shell line; of `bash -c SCRIPT`, the script."""
        if not words or not is_strings(words):
            return words
        self.note("type_line_of_words: command")
        if len(words) == 3 and words[0] in _SHELLS and words[1] in ("-c", "-lc"):
            return words[2]
        return words[0] if len(words) == 1 else shlex.join(words)

    def fields(self, given: dict[str, object], schema: Schema, path: tuple[str, ...], level: int) -> dict[str, object]:
        """The fields under the schema's names, each with a value of its type."""
        properties = properties_of(schema)
        fields: dict[str, object] = {}
        for key, value in given.items():
            is_known = key in properties or is_open(schema)
            name = key if is_known else self._renamed(key, properties, given, path)
            if name in fields:
                name = key
            fields[name] = value
        required = strings(schema.get("required"))
        for name, value in list(fields.items()):
            if name not in properties:
                continue
            place = ".".join((*path, name))
            if (
                value is None
                and name not in required
                and "null" not in types_of(properties[name], self.spec.parameters)
            ):
                del fields[name]
                self.note(f"null_left_out: {place}")
                continue
            fields[name] = self.value(value, properties[name], (*path, name), level)
        return fields

    def _renamed(
        self, key: str, properties: Mapping[str, Schema], given: Mapping[str, object], path: tuple[str, ...]
    ) -> str:
        free = [name for name in properties if name not in given]
        same = [name for name in free if _letters(name) == _letters(key)]
        folded = _snake(key)
        matches = same or [name for name in free if any({folded, name} <= group for group in PARAMETERS)]
        if len(matches) != 1:
            return key
        # Repairs contain only names of the schema: a model's own words could contain anything.
        self.note(f"argument_renamed: {'' if same else f'{folded} -> '}{'.'.join((*path, matches[0]))}")
        return matches[0]

    def value(self, value: object, schema: Schema, path: tuple[str, ...], level: int) -> object:
        """The value in the type that the schema asks for, if only its spelling differs."""
        root, place = self.spec.parameters, ".".join(path)
        choices = choices_of(schema, root)
        types = {str(choice.get("type", "any")) for choice in choices}
        if level > _MOST_LEVELS:
            return value
        fits = bool(types & {"any", json_type(value)}) or (json_type(value) == "integer" and "number" in types)
        if not fits:
            changed = self._changed(value, types, choices)
            if changed is not _SAME:
                kind = json_type(changed)
                self.note(f"type_{kind}: {place}")
                value = changed
        if isinstance(value, str) and (enum := enum_of(choices)) and value not in enum:
            alike = [
                choice for choice in enum if isinstance(choice, str) and choice.casefold() == value.strip().casefold()
            ]
            if len(alike) == 1:
                self.note(f"enum_spelling: {place}")
                return alike[0]
        return self._members(value, choices, path, level)

    def _members(self, value: object, choices: Sequence[Schema], path: tuple[str, ...], level: int) -> object:
        if is_object(value):
            inner = next((choice for choice in choices if "properties" in choice), None)
            return value if inner is None else self.fields(value, inner, path, level + 1)
        if is_list(value):
            schema = next((items for choice in choices if is_mapping(items := choice.get("items"))), None)
            return value if schema is None else [self.value(member, schema, path, level + 1) for member in value]
        return value

    def _changed(self, value: object, types: set[str], choices: Sequence[Schema]) -> object:
        if isinstance(value, str):
            return _from_text(value, types, choices, self.spec.parameters)
        if "string" in types and isinstance(value, bool | int):
            return str(value).lower() if isinstance(value, bool) else str(value)
        if is_list(value):
            return value[0] if "object" not in types and len(value) == 1 and json_type(value[0]) in types else _SAME
        if "array" in types and value is not None:
            return [value] if _takes(choices, value, self.spec.parameters) else _SAME
        if isinstance(value, float) and value.is_integer() and "integer" in types:
            return int(value)
        return _SAME


def _from_text(text: str, types: set[str], choices: Sequence[Schema], root: Schema) -> object:
    word = text.strip()
    if "boolean" in types and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if "integer" in types and _INTEGER.fullmatch(word):
        return int(word.partition(".")[0])
    if "number" in types and _NUMBER.fullmatch(word):
        return float(word) if "." in word else int(word)
    if "null" in types and word.lower() in ("", "null", "none"):
        return None
    if types & {"array", "object"}:
        parsed = _parsed(word)
        if json_type(parsed) in types & {"array", "object"}:
            return parsed
    if "array" in types and word[:1] not in ("[", "{"):
        if not word:
            return list[object]()
        return [text] if _takes(choices, text, root) else _SAME
    return _SAME


def _parsed(text: str) -> object:
    if text[:1] == "{":
        return read_object(text)
    return json_or_none(text, finite=True) if text[:1] == "[" else None


def _takes(choices: Sequence[Schema], value: object, root: Schema) -> bool:
    arrays = [choice.get("items") for choice in choices if choice.get("type") == "array"]
    types = [types_of(items, root) if is_mapping(items) else {"any"} for items in arrays]
    return any(each & {"any", json_type(value)} for each in types)


def _letters(name: str) -> str:
    return "".join(character for character in name[:100].casefold() if character.isalnum())


def _snake(name: str) -> str:
    """`filePath` and `File-Path` as `file_path`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:100])
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")
