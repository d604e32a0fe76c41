"""Calls written as text are found and nothing else is; and what a call is read as, whatever is written in it."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from swe_ai_fleet.agents.tool_call_dialects import RawToolCall, parse, render
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TAGS = """<tool_call> </tool_call> <function=f> </function> <think> </think> [[[[{ [TOOL_CALLS] <|python_tag|> null
<parameter=a> </parameter> <arg_key>a</arg_key><arg_value> <|tool_call_begin|>f ```json"""
PIECES = st.sampled_from(
    [*TAGS.split(), '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", ', "\n", "\ud800", "9" * 5000]
)


def call(name: str, arguments: str = "{}") -> RawToolCall:
    return RawToolCall(name=name, arguments=arguments)


@table(
    ("text", "content", "calls"),
    [
        ("just words", "just words", ()),
        ('I look.\n<tool_call>\n{"name": "f"}\n</tool_call>\nNow.', "I look.\n\nNow.", (call("f"),)),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", (call("f", '{"a": 1}'),)),
        ("<function=f></function>", "", (call("f"),)),
        ("<function=f>{oops</function>", "", (call("f", "{oops"),)),
        # Broken JSON that names its tool is a call with broken arguments.
        ('<tool_call>{"name": "f", "arguments": {</tool_call>', "", (call("f", "{"),)),
        ('<tool_call>{"name": "f", "arguments": {"a" 1}}</tool_call>', "", (call("f", '{"a" 1}'),)),
        ('<tool_call>{"name": "f", oops}</tool_call>', "", (call("f", '{"name": "f", oops}'),)),
        ("<tool_call>nothing like it</tool_call>", "<tool_call>nothing like it</tool_call>", ()),
        # A missing closing tag is forgiven, as it may be where the model was told to stop.
        ('<tool_call>{"name": "f"}', "", (call("f"),)),
        ('<tool_call>{"name": "f"', '<tool_call>{"name": "f"', ()),
        ("a <function=f> in prose", "a <function=f> in prose", ()),
        ('<think><tool_call>{"name": "f"}</tool_call></think>No.', None, ()),
    ],
)
def test_reads_calls_and_keeps_the_rest(text: str, content: str | None, calls: tuple[RawToolCall, ...]) -> None:
    assert parse(text) == (text if content is None else content, calls)


DIALECTS = {
    "name then json": ('<tool_call>f\n{"a": 1}\n</tool_call>', (call("f", '{"a": 1}'),)),
    "list in tags": ('<tool_calls>[{"name": "f"}, {"name": "g"}]</tool_calls>', (call("f"), call("g"))),
    "nested tags": ('<function_calls>\n<tool_call>{"name": "f"}</tool_call>\n</function_calls>', (call("f"),)),
    "llama function": ('<function=f>{"a": 1}<|eom_id|>', (call("f", '{"a": 1}'),)),
    "llama python tag": (
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}<|eot_id|>',
        (call("f", '{"a": 1}'), call("g")),
    ),
    "qwen coder": (
        "<tool_call>\n<function=f>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\n\nx </parameter> y\n\n"
        "</parameter>\n</function>\n</tool_call>",
        (call("f", '{"path": "a.py", "text": "\\nx </parameter> y\\n"}'),),
    ),
    "invoke": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
        (call("f", '{"a": "1"}'),),
    ),
    "mistral list": ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</s>', None),
    "mistral named": ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}', (call("f", '{"a": 1}'), call("g"))),
    "glm": ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", (call("f", '{"a": "1"}'),)),
    "deepseek": (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function"
        '<\uff5ctool\u2581sep\uff5c>f\n```json\n{"a": 1}\n```<\uff5ctool\u2581call\u2581end\uff5c>\n'
        "<\uff5ctool\u2581call\u2581begin\uff5c>g<\uff5ctool\u2581sep\uff5c>{}"
        "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>",
        (call("f", '{"a": 1}'), call("g")),
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
        (call("f", '{"a": 1}'),),
    ),
    "fenced": ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', (call("f", '{"a": 1}'),)),
    "bare": ('{"name": "f", "parameters": {"a": 1}}', (call("f", '{"a": 1}'),)),
}


@table("dialect", DIALECTS)
def test_reads_the_notations_of_many_models(dialect: str) -> None:
    text, calls = DIALECTS[dialect]
    if calls is None:
        assert parse(text) == ("</s>", (call("f", '{"a": 1}'), call("g")))
        return
    assert parse(text) == ("", calls)
    assert parse(f"I look.\n<think>{text}</think>")[1] == ()
    if dialect not in ("fenced", "bare"):
        assert parse(f"I look.\n{text}") == ("I look.", calls)


@table(
    "text",
    [
        'The config is {"name": "f", "arguments": {"a": 1}}.',
        '{"name": "f", "description": "d", "parameters": {"type": "object"}}',
        '{"name": "f", "arguments": "x"}',
        '```json\n{"name": "f", "arguments": {}}\n```\nThat is what I would call.',
        '<|python_tag|>search.call(query="x")',
        "Write <tool_call> and </tool_call> around it.",
        '<think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        # The chat template opened the thought.
        'I could <tool_call>{"name": "f"}</tool_call>.\n</think>\nNo.',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parse(text) == (text, ())


@table(
    "partial",
    [
        '<tool_call>{"name": "f"}',
        '<tool_call>{"name": "f", "arguments": {"a": ',
        '<function=f>{"a": 1}',
    ],
)
def test_a_truncated_reply_gives_whole_calls_only(partial: str) -> None:
    assert parse(partial, truncated=True) == (partial, ())
    whole = '<tool_call>{"name": "g"}</tool_call>'
    assert parse(f"{whole}\n{partial}", truncated=True) == (partial.strip(), (call("g"),))


@given(st.text() | st.lists(PIECES, max_size=12).map("".join), st.booleans())
@example("<tool_call>" + "[" * 100_000, False)
def test_any_text_is_taken(text: str, truncated: bool) -> None:
    content, calls = parse(text, truncated=truncated)
    assert calls or content == text
    assert all(found.name for found in calls)


@settings(max_examples=15)
@given(
    st.text().filter(lambda text: "<" not in text),
    st.lists(st.tuples(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), st.dictionaries(st.text(), JSON)), min_size=1),
)
def test_what_is_rendered_is_read_back(content: str, made: list[tuple[str, dict[str, object]]]) -> None:
    text = "\n".join([content, *(render(call(name, json.dumps(arguments))) for name, arguments in made)])
    rest, found = parse(text, truncated=True)
    assert rest == content.strip()
    assert [(one.name, json.loads(one.arguments)) for one in found] == made


FLOODS = [
    "<tool_call>{",
    "<function=f><parameter=a></parameter>x",
    "<tool_call>f<arg_key>a</arg_key><arg_value>",
    '<invoke name="f"><parameter name="a">',
    "<|python_tag|>{",
    "<think>",
    '<tool_call>{"name": "',
    '["<tool_call>[", ',
]


@table("flood", FLOODS)
def test_a_flood_costs_little(flood: str) -> None:
    text = flood * (600_000 // len(flood))
    started = time.process_time()
    parse(text)
    parse(text[: -len(flood)] + " " * 100_000, truncated=True)
    assert time.process_time() - started < 10
