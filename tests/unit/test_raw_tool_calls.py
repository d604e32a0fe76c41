"""Calls written as text are found, and nothing else is."""

import json
import time

from hypothesis import example, given, settings
from hypothesis import strategies as st

from swe_ai_fleet.agents.tool_call_dialects import RawToolCall, parse, render
from tests.tables import table

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
