"""Answers of model servers, read whatever shape they have."""

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_ai_fleet.adapters.openai_model import json_protocol
from swe_ai_fleet.adapters.openai_model.answers import Asked, ErrorAnswer, read_reply
from swe_ai_fleet.adapters.openai_model.bodies import read_json
from swe_ai_fleet.adapters.openai_model.model_list import read_models
from swe_ai_fleet.adapters.openai_model.streaming import BrokenStream, StreamedCompletion, read_answer
from swe_ai_fleet.adapters.openai_model.thought_deltas import ThoughtDeltas
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ToolCall, ToolProtocol
from swe_ai_fleet.domain.tool import OperationSpec

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FUNCTION: st.SearchStrategy[Any] = st.fixed_dictionaries({}, optional={"name": JSON, "arguments": JSON})
CALL: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {}, optional={"id": JSON, "function": FUNCTION | JSON, "index": JSON}
)
MESSAGE: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {}, optional={"content": JSON, "tool_calls": st.lists(CALL) | JSON, "function_call": FUNCTION | JSON}
)
ALTERNATIVE: st.SearchStrategy[Any] = st.fixed_dictionaries({}, optional={"token": JSON, "logprob": JSON})
LOGPROBS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"content": st.lists(st.fixed_dictionaries({"top_logprobs": st.lists(ALTERNATIVE) | JSON})) | JSON}
)
CHOICE: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {}, optional={"message": MESSAGE | JSON, "delta": MESSAGE, "finish_reason": JSON, "logprobs": LOGPROBS | JSON}
)
COMPLETION: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICE, max_size=3) | JSON,
        "usage": st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), JSON) | JSON,
        "model": JSON,
        "error": JSON,
    },
)


def read(completion: object, *, protocol: ToolProtocol = ToolProtocol.NATIVE, tools: bool = True) -> ModelReply:
    """The reply in a body, by the way that the client takes."""
    body = completion if isinstance(completion, bytes) else json.dumps(completion).encode()
    repairs: list[str] = []
    ids = iter(range(10_000))
    return read_reply(
        read_answer(body, repairs),
        Asked(protocol=protocol, tools_offered=tools, taken=("taken",)),
        repairs=repairs,
        new_call_id=lambda: f"ours-{next(ids)}",
        duration_ms=1,
    )


def said(**message: object) -> dict[str, object]:
    return {"choices": [{"message": message, "finish_reason": "stop"}]}


def stream(*chunks: object, done: bool = True) -> bytes:
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*events, "data: [DONE]\n\n" if done else ""]).encode()


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


# One body


@pytest.mark.parametrize(
    ("message", "calls", "repaired"),
    [
        ({"tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}, [("f", '{"a": 1}')], False),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, [("f", '{"a": 1}')], True),
        ({"tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}, [("f", "[1]")], True),
        ({"tool_calls": [{"function": {"name": "f", "arguments": 5}}]}, [("f", "5")], True),
        ({"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, [("f", "")], False),
        ({"tool_calls": [{"function": {"name": "f"}}]}, [("f", "{}")], False),
        ({"tool_calls": {"function": {"name": "f"}}}, [("f", "{}")], False),
        ({"tool_calls": [{"name": "f", "input": {"a": 1}}]}, [("f", '{"a": 1}')], True),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, [("", "{}")], True),
        ({"tool_calls": [{"function": 1}]}, [("", '{"function": 1}')], True),
        ({"tool_calls": [None]}, [], False),
        ({"function_call": {"name": "f", "arguments": "{}"}}, [("f", "{}")], True),
        ({"content": '<tool_call>{"name": "f"}</tool_call>'}, [("f", "{}")], True),
        ({"content": "<function=f>{}</function>", "tool_calls": []}, [("f", "{}")], True),
        ({"content": None, "reasoning_content": '<tool_call>{"name": "f"}</tool_call>'}, [], False),
    ],
)
def test_calls_in_many_shapes(message: dict[str, object], calls: list[tuple[str, str]], repaired: bool) -> None:
    reply = read(said(**message))
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == calls
    assert bool(reply.repairs) is repaired
    assert reply.finish_reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([{"type": "text", "text": "a"}, "b", None, {"type": "thinking", "thinking": "no"}], "ab"),
        ([{"type": "reasoning", "text": "no"}, {"type": "text", "text": {"value": "a"}}], "a"),
        ({"text": "a"}, "a"),
        (5, "5"),
    ],
)
def test_text_in_many_shapes(content: object, text: str) -> None:
    assert read(said(content=content)).message.content == text


def test_ids_are_the_models_where_they_are_its_own() -> None:
    calls = [{"id": wire, "function": {"name": "f"}} for wire in ("a", "a", "taken", "", None, 7, "x" * 1000)]
    found = read(said(tool_calls=calls)).message.tool_calls
    assert [call.model_call_id for call in found] == ["a", "ours-1", "ours-2", "ours-3", "ours-4", "7", "ours-6"]
    assert [call.call_id for call in found] == [f"ours-{number}" for number in range(7)]


@pytest.mark.parametrize("count", [None, -5, "7", True, 1e300, float("nan"), 10**12, [3]])
def test_nonsense_about_usage_counts_as_nothing(count: object) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 5.0, "prompt_tokens_details": {"cached_tokens": 9}}
    spent = read({**said(content="x"), "usage": usage}).usage
    assert (spent.prompt_tokens, spent.completion_tokens, spent.cached_tokens, spent.model_calls) == (0, 5, 0, 1)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("LENGTH", "length"), ("max_tokens", "length"), ("eos", "stop"), (None, "other"), (5, "other"), ("x", "other")],
)
def test_reasons_to_finish(reason: object, finish: str) -> None:
    assert read({"choices": [{"message": {"content": "x"}, "finish_reason": reason}]}).finish_reason == finish


def test_a_cut_reply_stays_cut() -> None:
    body = {"choices": [{"message": {"tool_calls": [{"function": {"name": "f"}}]}, "finish_reason": "length"}]}
    assert read(body).finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"message": "x", "code": 429}}, 429),
        ({"error": {"message": "x", "code": "502"}, "choices": None}, 502),
        ({"error": {"message": "x", "code": "server_error"}}, 500),
        ({"error": "x"}, 500),
    ],
)
def test_an_error_in_place_of_a_completion(body: object, status: int) -> None:
    with pytest.raises(ErrorAnswer) as raised:
        read(body)
    assert (raised.value.refusal.status, raised.value.refusal.message) == (status, "x")


@pytest.mark.parametrize(
    "body", [b"", b"no", b"{}", b"[" * 100_000, b'{"a":' * 100_000, b'"\xff', b'{"choices": [{}]}']
)
def test_what_is_no_completion_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read(body)


@given(COMPLETION)
def test_any_completion_is_read_or_refused(completion: object) -> None:
    for protocol in ToolProtocol:
        try:
            reply = read(completion, protocol=protocol)
        except (ValueError, ErrorAnswer):
            continue
        json.dumps(reply.message.content, ensure_ascii=False).encode()
        wire = [call.model_call_id for call in reply.message.tool_calls]
        assert len(set(wire)) == len(wire)
        assert all(wire)
        assert reply.usage.prompt_tokens >= reply.usage.cached_tokens >= 0
        assert len(reply.repairs) <= 16


@given(st.binary() | st.text().map(lambda text: json.dumps(said(content=text)).encode("utf-8")), st.integers(0, 300))
def test_any_bytes_are_read_or_refused(body: bytes, flip: int) -> None:
    damaged = bytes(byte ^ 0xA5 if index == flip else byte for index, byte in enumerate(body))
    for each in (body, damaged):
        try:
            read(each).message.content.encode()
        except (ValueError, ErrorAnswer, BrokenStream):
            continue


def test_mending_keeps_what_is_whole() -> None:
    repairs: list[str] = []
    assert read_json(b'{"a": "\\ud83d\\ude00 \\ud83d", "n": %b}' % (b"9" * 5000), repairs) == {"a": "😀 \ufffd", "n": 0}
    assert repairs == ["half a surrogate pair replaced"]


# The JSON protocol


@pytest.mark.parametrize(
    ("content", "thought", "calls"),
    [
        ('{"thought": "t", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]}', "t", [("f", '{"a": 1}')]),
        ('```json\n{"thought": "t", "tool_calls": [{"name": "f"}]}\n```', "t", [("f", "{}")]),
        ('<think>hm</think>{"tool_calls": [{"name": "f"}]} So.', "So.", [("f", "{}")]),
        ('{"thought": "t", "tool_calls": [{"arguments": {}}, 3]}', "t", [("", '{"arguments": {}}'), ("", "3")]),
        ('{"thought": "t", "tool_calls": []}', "t", []),
        ('{"thought": "t"}', "t", []),
        ('I look. <tool_call>{"name": "f"}</tool_call>', "I look.", [("f", "{}")]),
        ('{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        ('{"thought": "t", "tool_calls": [{"na', '{"thought": "t", "tool_calls": [{"na', []),
        ('{"steps": []}', '{"steps": []}', []),
        ("Just words.", "Just words.", []),
    ],
)
def test_calls_in_an_envelope(content: str, thought: str, calls: list[tuple[str, str]]) -> None:
    reply = read(said(content=content), protocol=ToolProtocol.JSON)
    assert reply.message.content == thought
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == calls


@given(st.text(), st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), JSON) | st.text()), max_size=3))
def test_an_envelope_shown_is_read_back(thought: str, made: list[tuple[str, object]]) -> None:
    calls = tuple(
        ToolCall(
            call_id="c", model_call_id="c", name=name, arguments=text if isinstance(text, str) else json.dumps(text)
        )
        for name, text in made
    )
    shown = json_protocol.show(AssistantMessage(content=thought, tool_calls=calls))
    found = json_protocol.read(shown)
    assert found is not None
    assert found[0] == thought
    assert [call.name for call in found[1]] == [call.name for call in calls]
    for one, other in zip(found[1], calls, strict=True):
        assert one.arguments == other.arguments or repr(json.loads(one.arguments)) == repr(json.loads(other.arguments))


def test_the_envelopes_schema_holds_each_tool_to_its_parameters_where_it_can() -> None:
    def spec(name: str, parameters: dict[str, object]) -> OperationSpec:
        return OperationSpec(name=name, tool="t", operation=name, description="", parameters=parameters)

    plain: dict[str, object] = {"type": "object", "properties": {"a": {"type": "string"}}}
    pointing: dict[str, object] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}}
    huge: dict[str, object] = {"type": "object", "description": "x" * 40_000}
    tools = [spec("f", plain), spec("g", pointing)]

    def items(schema: dict[str, object]) -> str:
        return json.dumps(schema["properties"]["tool_calls"]["items"])  # type: ignore[index]

    full = items(json_protocol.envelope_schema(tools, full=True))
    assert json.dumps(plain) in full
    assert "$ref" not in full
    for loose in (
        json_protocol.envelope_schema(tools, full=False),
        json_protocol.envelope_schema([*tools, spec("h", huge)], full=True),
    ):
        assert '"enum": ["f", "g"' in items(loose)
        assert json.dumps(plain) not in items(loose)


# Streams


@given(
    st.text(),
    st.lists(st.tuples(st.text(min_size=1, max_size=30), st.text()), max_size=3),
    st.lists(st.integers(1, 40), min_size=1),
    st.sampled_from([b"\n", b"\r\n"]),
)
@example("a😀", [], [1], b"\n")
def test_a_stream_cut_anywhere_gives_the_same_reply(
    text: str, calls: list[tuple[str, str]], cuts: list[int], newline: bytes
) -> None:
    chunks: list[object] = [delta(content=character) for character in text]
    for index, (name, arguments) in enumerate(calls):
        chunks.append(delta(tool_calls=[{"index": index, "id": f"i{index}", "function": {"name": name}}]))
        chunks += [
            delta(tool_calls=[{"index": index, "function": {"arguments": character}}]) for character in arguments
        ]
    body = stream(*chunks, delta("stop"), {"choices": [], "usage": {"prompt_tokens": 3}}).replace(b"\n", newline)
    heard: list[str] = []
    streamed = StreamedCompletion(heard.append)
    position = 0
    while position < len(body):
        for cut in cuts:
            streamed.take(body[position : position + cut])
            position += cut
    reply = read(json.dumps(streamed.completion()).encode(), tools=False)
    assert reply.message.content == text
    assert "".join(heard) == text
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == [
        (name, arguments or "{}") for name, arguments in calls
    ]
    assert reply.usage.prompt_tokens == 3


@given(st.text(), st.lists(st.integers(1, 9), min_size=1), st.booleans())
@example('a\\"😀\n', [1], True)
def test_of_calls_as_json_only_the_thought_is_heard(thought: str, cuts: list[int], escaped: bool) -> None:
    call = {"name": "f", "arguments": {"thought": "no"}}
    whole = json.dumps({"thought": thought, "tool_calls": [call]}, ensure_ascii=escaped)
    heard: list[str] = []
    hear = ThoughtDeltas(heard.append)
    position = 0
    while position < len(whole):
        for cut in cuts:
            hear(whole[position : position + cut])
            position += cut
    assert "".join(heard) == thought


@pytest.mark.parametrize("text", ["Just words.", '{"steps": ["' + "x" * 100, " [1]"])
def test_what_is_no_envelope_is_heard_as_it_is(text: str) -> None:
    heard: list[str] = []
    hear = ThoughtDeltas(heard.append)
    for character in text:
        hear(character)
    assert "".join(heard) == text


def test_a_broken_escape_in_a_thought_ends_it() -> None:
    heard: list[str] = []
    hear = ThoughtDeltas(heard.append)
    for character in '{"thought": "ab\\uzzzz' + "c" * 1000:
        hear(character)
    assert "".join(heard) == "ab"


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        # The same number for all of them, each whole.
        (
            [
                {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
                {"index": 0, "id": "b", "function": {"name": "g", "arguments": "{}"}},
            ],
            [("f", "{}"), ("g", "{}")],
        ),
        (
            [
                {"index": 0, "function": {"name": "f", "arguments": "{}"}},
                {"index": 0, "function": {"name": "g", "arguments": "{}"}},
            ],
            [("f", "{}"), ("g", "{}")],
        ),
        # No numbers at all.
        (
            [
                {"id": "a", "function": {"name": "f", "arguments": '{"x"'}},
                {"function": {"arguments": ": 1}"}},
                {"id": "b", "function": {"name": "g"}},
                {"id": "a", "function": {"arguments": " "}},
            ],
            [("f", '{"x": 1} '), ("g", "{}")],
        ),
        # Id and name with every fragment; a name in pieces.
        (
            [
                {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}},
                {"index": 0, "id": "a", "function": {"name": "f", "arguments": "}"}},
            ],
            [("f", "{}")],
        ),
        (
            [{"index": 0, "id": "a", "function": {"name": "files_"}}, {"index": 0, "function": {"name": "look"}}],
            [("files_look", "{}")],
        ),
        # In turns.
        (
            [
                {"index": 0, "function": {"name": "f", "arguments": "{"}},
                {"index": 1, "function": {"name": "g", "arguments": "{"}},
                {"index": 0, "function": {"arguments": "}"}},
                {"index": 1, "function": {"arguments": "}"}},
            ],
            [("f", "{}"), ("g", "{}")],
        ),
        ([{"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}], [("f", '{"a": 1}')]),
        ([{"index": 0, "function": {"arguments": "{}"}}], [("", "{}")]),
    ],
)
def test_fragments_of_calls_find_each_other(parts: list[object], calls: list[tuple[str, str]]) -> None:
    reply = read(stream(*(delta(tool_calls=[part]) for part in parts), delta("tool_calls")))
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == calls


def test_odd_lines_in_a_stream() -> None:
    body = (
        b': keep-alive\r\n\r\nevent: message\r\ndata:{"choices":[{"delta":{"content":"a"}}]}\r\n\r\n'
        b'data: {"choices":\ndata: [{"delta":{"content":"b"}}]}\n\n'
        b"data: ping\n\nid: 5\nretry: 1\n\n"
        b'data: {"choices":[{"delta":{"content":"c\xff"}}]}\n'
        b'data: {"choices":[{"index":1,"delta":{"content":"no"}}]}\n\n'
        b'data: {"choices":[{"delta":{"function_call":{"name":"f"}}}]}\n\n'
        b'data: {"choices":[{"delta":{"function_call":{"arguments":"{}"}},"finish_reason":"function_call"}]}'
    )
    reply = read(body)
    assert reply.message.content == "abc\ufffd"
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == [("f", "{}")]
    assert reply.finish_reason == "tool_calls"
    assert reply.repairs == ("an event that is no JSON left out", "invalid UTF-8 replaced")


def test_a_surrogate_pair_in_two_events_is_one_character() -> None:
    heard: list[str] = []
    streamed = StreamedCompletion(heard.append)
    streamed.take(stream(delta(content="a\ud83d"), delta(content="\ude00b"), delta("stop", content="\ud83d")))
    reply = read_reply(
        streamed.completion(),
        Asked(protocol=ToolProtocol.TEXT, tools_offered=False),
        repairs=streamed.repairs,
        new_call_id=str,
        duration_ms=1,
    )
    assert reply.message.content == "a😀b\ufffd"
    assert "".join(heard) == "a😀b"
    assert reply.repairs[-1] == "half a surrogate pair replaced"


def test_a_stream_without_an_end_is_broken() -> None:
    body = stream(delta(content="a"), done=False)
    for broken in (body, body[:-20], b": still there\n\n"):
        with pytest.raises(BrokenStream):
            read(broken)
    assert read(body + stream(delta("stop"), done=False)).message.content == "a"


def test_a_flood_in_a_stream_costs_little_and_ends() -> None:
    started = time.process_time()
    for line in (
        b"data: {\n",
        b"x",
        b'data: {"choices":[{"delta":{"tool_calls":[{"id":"%d","function":{"name":"f"}}]}}]}\n',
    ):
        streamed = StreamedCompletion()
        for number in range(200):
            streamed.take(b"".join(line.replace(b"%d", b"%d" % (number * 50 + n)) for n in range(50)))
        try:
            streamed.completion()
        except (BrokenStream, ValueError):
            continue
    assert time.process_time() - started < 20
    streamed = StreamedCompletion()
    with pytest.raises(ValueError, match="too long"):
        for _ in range(70):
            streamed.take(b"x" * 1024 * 1024)


# The list of models


def test_models_are_listed_as_far_as_they_can_be_read() -> None:
    listed = [
        {"id": "a", "owned_by": "vllm", "max_model_len": 8},
        {"id": "b", "context_length": "long", "context_window": 9, "capabilities": {"vision": True}},
        {"id": "c", "max_model_len": -1, "architecture": {"input_modalities": ["text", "image"]}},
        {"id": "d", "capabilities": ["completion", "multimodal"], "owned_by": None},
        {"id": ""},
        {"name": "x"},
        None,
    ]
    models = read_models(json.dumps({"data": listed}).encode())
    assert [(model.id, model.owned_by, model.longest, model.images) for model in models] == [
        ("a", "vllm", 8, False),
        ("b", "", 9, True),
        ("c", "", 0, True),
        ("d", "", 0, True),
    ]
    for wrong in (b"[]", b"{}", b"<html>", b'{"data": {}}', b"\xff", b"[" * 100_000):
        with pytest.raises(ValueError):
            read_models(wrong)


def test_likely_first_tokens_are_read_and_nothing_is_made_of_garbage() -> None:
    likely = [
        {"token": "Yes", "logprob": -0.1, "bytes": [89, 101, 115]},
        {"token": " no", "logprob": -3},
        {"token": "Yes", "logprob": 1e-9},
        {"token": "far", "logprob": -(10**400)},
        {"token": 7, "logprob": -1.0},
        {"token": "none"},
        "yes",
    ]
    choice = {"message": {"content": "Yes"}, "logprobs": {"content": [{"token": "Yes", "top_logprobs": likely}]}}
    assert read({"choices": [choice]}).top_logprobs == (("Yes", -0.1), (" no", -3.0), ("Yes", 0.0))
    for garbage in (None, [], {"content": None}, {"content": ["Yes"]}, {"content": [{"top_logprobs": {"Yes": -1}}]}):
        assert read({"choices": [{**choice, "logprobs": garbage}]}).top_logprobs == ()
