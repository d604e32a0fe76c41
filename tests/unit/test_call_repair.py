"""What a call is read as, whatever is written in it: pure properties of the repair ladder."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.tools import FileTool, GitTool, HttpTool, Pipeline, ShellTool, TestTool
from tests.tables import table

PIPELINE = Pipeline()
BOX = Toolbox({kit.name: kit(".", PIPELINE) for kit in (FileTool, GitTool, ShellTool, TestTool, HttpTool)}, PIPELINE)
NAMES = sorted(spec.name for spec in BOX.specs)


def read(name: str, arguments: str, *, truncated: bool = False) -> Any:
    return BOX.understand(ToolCall(call_id="1", model_call_id="", name=name, arguments=arguments), truncated=truncated)


@given(st.text(), st.text(), st.integers(0, 400))
def test_what_was_cut_off_is_never_read_as_whole(path: str, content: str, cut: int) -> None:
    text = json.dumps({"path": path, "content": content})
    understood = read("files_write_file", text[: cut + 1], truncated=True)
    assert bool(understood.error) == (cut + 1 < len(text))


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
    assert set(understood.near) <= set(NAMES)


@given(st.sampled_from(NAMES), st.integers(0, 30), st.sampled_from("abcdefghij_ -"))
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
    ):
        for name in names.split():
            understood = read(name, arguments)
            assert understood.spec is not None and understood.spec.read_only, name


def test_a_strangers_schema_that_points_at_itself_is_no_trap() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}
    parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": loop}}
    spec = OperationSpec(name="odd", tool="odd", operation="odd", description="", parameters=parameters)
    kit: Any = SimpleNamespace(definitions={"odd": SimpleNamespace(spec=spec)})
    value: Any = "5"
    for _ in range(60):
        value = [value]
    call = ToolCall(call_id="1", model_call_id="", name="odd", arguments=json.dumps({"x": value}))
    started = time.process_time()
    assert Toolbox({"odd": kit}, PIPELINE).understand(call).arguments == {"x": value}
    assert time.process_time() - started < 5


@table(
    "text",
    [
        '{"a":' * 100_000,
        '{"a": "' + "\\" * 300_001,
        "{'a': '" + "x\\'" * 100_000,
        "<a></a>" * 50_000 + "<",
        '{"a": 1}' + "}" * 300_000,
        "{" + '"a": 1 ' * 15_000,
        '{"a": ' + "9" * 300_000,
    ],
)
def test_hostile_arguments_take_no_time(text: str) -> None:
    started = time.process_time()
    read("files_read_file", text)
    read(text, text)
    assert time.process_time() - started < 10
