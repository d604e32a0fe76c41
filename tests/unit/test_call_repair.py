"""What a call is read as, whatever is written in it: pure properties of the repair ladder."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_ai_fleet.agents.repair.arguments import read_arguments
from swe_ai_fleet.agents.repair.reading import CallReader, Understood
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.tools.catalogue import operations
from tests.tables import table

SPECS = {name: definition.spec for name, definition in operations().items()} | {FINAL_ANSWER.name: FINAL_ANSWER}
READER = CallReader(SPECS.values(), answer=FINAL_ANSWER.name)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


def read(name: str, arguments: str, *, truncated: bool = False) -> Understood:
    return READER.read(ToolCall(call_id="1", model_call_id="", name=name, arguments=arguments), truncated=truncated)


@given(OBJECTS)
def test_an_object_that_is_json_is_read_as_it_is(fields: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(fields)) == (fields, ())


@given(st.text())
@example('{"path": "a.py" "b": 1')
@example("{'a': \"\\'\"}")
def test_any_text_is_an_object_a_string_or_an_error(text: str) -> None:
    for truncated in (False, True):
        try:
            value, _ = read_arguments(text, truncated=truncated)
        except ValueError as error:
            assert str(error)
        else:
            assert isinstance(value, dict | str)
            json.dumps(value, allow_nan=False)


@given(OBJECTS, st.integers(0, 400))
def test_what_was_cut_off_is_never_read_as_whole(fields: dict[str, Any], cut: int) -> None:
    text = json.dumps(fields)[: cut + 1]
    if len(text) == len(json.dumps(fields)):
        return
    with pytest.raises(ValueError, match=r"."):
        read_arguments(text, truncated=True)


@given(st.text(), st.text())
def test_what_a_file_gets_is_what_was_written(path: str, content: str) -> None:
    arguments = {"file_path": path, "text": content}
    for written in (json.dumps(arguments), json.dumps(json.dumps(arguments)), repr_json(arguments)):
        understood = read("create_file", written)
        assert understood.arguments == {"path": path, "content": content}


def repr_json(fields: dict[str, str]) -> str:
    """The object with a comma too many and a fence around it."""
    return "```json\n" + json.dumps(fields)[:-1] + ",}\n```"


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_call_is_read(name: str, arguments: str) -> None:
    understood = read(name, arguments)
    assert bool(understood.error) or understood.spec is not None
    assert set(understood.near) <= SPECS.keys()


@given(st.sampled_from(sorted(SPECS)), st.integers(0, 30), st.sampled_from("abcdefghij_ -"))
def test_a_misspelt_name_never_has_an_effect(name: str, at: int, letter: str) -> None:
    misspelt = name[:at] + letter + name[at + 1 :]
    understood = read(misspelt, "{}")
    if understood.spec is not None and any(repair.startswith("name_nearest") for repair in understood.repairs):
        assert understood.spec.read_only
        assert not understood.spec.executes


def test_names_for_reading_only_read() -> None:
    for names, arguments in (
        ("read view cat open_file ls dir list stat", '{"path": "a"}'),
        ("glob find_files grep rg search search_files", '{"pattern": "a"}'),
        ("fetch", '{"url": "https://a.test/"}'),
    ):
        for name in names.split():
            understood = read(name, arguments)
            assert understood.spec is not None and understood.spec.read_only, name


def test_a_strangers_schema_that_points_at_itself_is_no_trap() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}
    parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": loop}}
    spec = OperationSpec(name="odd", tool="odd", operation="odd", description="", parameters=parameters)
    reader = CallReader([spec], answer="final_answer")
    value: Any = "5"
    for _ in range(60):
        value = [value]
    call = ToolCall(call_id="1", model_call_id="", name="odd", arguments=json.dumps({"x": value}))
    started = time.process_time()
    assert reader.read(call).arguments == {"x": value}
    assert time.process_time() - started < 5


@table(
    "text",
    [
        "[" * 300_000,
        '{"a":' * 100_000,
        '{"a": "' + "\\" * 300_001,
        "{'a': '" + "x\\'" * 100_000,
        "<parameter=a>" * 50_000,
        "<a></a>" * 50_000 + "<",
        '{"a": 1}' + "}" * 300_000,
        "{" + '"a": 1 ' * 15_000,
        " " * 300_000 + "x",
        '{"a": ' + "9" * 300_000,
    ],
)
def test_hostile_arguments_take_no_time(text: str) -> None:
    started = time.process_time()
    read("files_read_file", text)
    read(text, text)
    assert time.process_time() - started < 10
