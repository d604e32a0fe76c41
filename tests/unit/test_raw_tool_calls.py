"""Calls written as text are found, and nothing else is."""

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_ai_fleet.agents.raw_tool_calls import RawToolCall, parse, render

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<think>",
        "</think>",
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name": "f", ',
        "[[[[{",
        "null",
        "\n",
        "\ud800",
        "9" * 5000,
    ]
)


def call(name: str, arguments: str = "{}") -> RawToolCall:
    return RawToolCall(name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just words", "just words", ()),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "", (call("f", '{"a": 1}'),)),
        ('I look.\n<tool_call>\n{"name": "f"}\n</tool_call>\nNow.', "I look.\n\nNow.", (call("f"),)),
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "", (call("f", '{"a": 1}'),)),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", (call("f", '{"a": 1}'),)),
        ('<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', "", (call("f"), call("g"))),
        ('<function=f>{"a": 1}</function>', "", (call("f", '{"a": 1}'),)),
        ("<function=f></function>", "", (call("f"),)),
        ("<function=f>{oops</function>", "", (call("f", "{oops"),)),
        ('<tool_call>\n<function=f>{"a": 1}</function>\n</tool_call>', "", (call("f", '{"a": 1}'),)),
        ('<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>', "", (call("f"), call("g"))),
        # Broken JSON that names its tool is a call with broken arguments.
        ('<tool_call>{"name": "f", "arguments": {</tool_call>', "", (call("f", '{"name": "f", "arguments": {'),)),
        ("<tool_call>nothing like it</tool_call>", "<tool_call>nothing like it</tool_call>", ()),
        ('<tool_call>{"no": "name"}</tool_call>', '<tool_call>{"no": "name"}</tool_call>', ()),
        # A missing closing tag is forgiven, as it may be where the model was told to stop.
        ('<tool_call>{"name": "f"}', "", (call("f"),)),
        ('<tool_call>{"name": "f"', '<tool_call>{"name": "f"', ()),
        ("a <function=f> in prose", "a <function=f> in prose", ()),
        ("<function=f> 5 of them", "<function=f> 5 of them", ()),
        ('<think><tool_call>{"name": "f"}</tool_call></think>No.', None, ()),
        ('<think>hm</think><tool_call>{"name": "f"}</tool_call>', "<think>hm</think>", (call("f"),)),
    ],
)
def test_reads_calls_and_keeps_the_rest(text: str, content: str | None, calls: tuple[RawToolCall, ...]) -> None:
    assert parse(text) == (text if content is None else content, calls)


def test_an_argument_may_contain_a_closing_tag() -> None:
    arguments = json.dumps({"text": "a </tool_call> b </function> c"})
    assert parse(render(call("write", arguments))) == ("", (call("write", arguments),))
    assert parse(f"<function=write>{arguments}</function>") == ("", (call("write", arguments),))


@pytest.mark.parametrize(
    "partial",
    [
        '<tool_call>{"name": "f"}',
        '<tool_call>{"name": "f", "arguments": {"a": ',
        '<function=f>{"a": 1}',
        '<tool_call>\n<function=f>{"a": 1}',
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


@given(st.lists(PIECES, max_size=12).map("".join))
def test_truncation_never_adds_a_call(text: str) -> None:
    assert len(parse(text, truncated=True)[1]) <= len(parse(text)[1])


@given(
    st.text().filter(lambda text: "<" not in text),
    st.lists(st.tuples(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), st.dictionaries(st.text(), JSON)), min_size=1),
)
def test_what_is_rendered_is_read_back(content: str, made: list[tuple[str, dict[str, object]]]) -> None:
    text = "\n".join([content, *(render(call(name, json.dumps(arguments))) for name, arguments in made)])
    rest, found = parse(text, truncated=True)
    assert rest == content.strip()
    assert [(one.name, json.loads(one.arguments)) for one in found] == made


@given(st.text())
def test_arguments_that_are_no_json_come_back_as_they_were(arguments: str) -> None:
    _, (found,) = parse(render(call("f", arguments)))
    assert found.arguments == arguments or json.loads(found.arguments) == json.loads(arguments)


def test_a_flood_of_tags_costs_little() -> None:
    started = time.perf_counter()
    parse("<tool_call>{" * 50_000)
    parse("<function=f>" * 50_000)
    assert time.perf_counter() - started < 1.0
