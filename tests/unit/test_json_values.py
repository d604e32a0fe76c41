"""JSON of others: what is read, and what is refused with one kind of error."""

from __future__ import annotations

import ast
import tomllib

import pytest

from swe_ai_fleet.domain.json_values import (
    json_object,
    json_or_none,
    mapping,
    mappings,
    number_in,
    parse_json,
    parse_json_at,
    parsed,
    strings,
    with_texts,
)
from tests.tables import table

DEEP = "[" * 200_000


@table("text", ["", "{", DEEP, '{"a":' * 200_000, "1" * 5_000, b"\xff", '"\n"'])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes):
    with pytest.raises(ValueError):
        parse_json(text)
    assert json_or_none(text) is None
    assert json_object(text) == {}


@table("text", ["NaN", "-Infinity", "[1e999]"])
def test_numbers_that_json_has_not_are_refused_where_asked(text: str):
    parse_json(text)
    with pytest.raises(ValueError, match="is not a JSON number"):
        parse_json(text, finite=True)


def test_what_comes_out_is_neither_deep_nor_half_a_character():
    """Nobody behind the reader looks for either again."""
    assert parse_json("[" * 100 + "1" + "]" * 100) is not None
    for deep in ("[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101, "[" * 500 + '"[["' + "]" * 500):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(deep)
    assert parse_json('["\\ud83d\\ude00", {"a\\ud800": "\\udfff"}]') == ["\U0001f600", {"a\ufffd": "\ufffd"}]
    assert parse_json('"\ud800"') == "\ufffd"
    assert parse_json(b"\xef\xbb\xbf[]") == []
    assert parse_json_at('so: {"a": "\\ud800"} and on', 4) == ({"a": "\ufffd"}, 19)


def test_a_parser_of_any_language_fails_in_one_way():
    assert parsed(ast.literal_eval, "[1]") == [1]
    for parse, text in ((ast.parse, "-" * 100_000 + "1"), (tomllib.loads, "a = " + "[" * 100_000)):
        with pytest.raises(ValueError, match="nested too deeply"):
            parsed(parse, text)


def test_numbers_in_texts_are_between_two():
    assert [number_in(text, 0, 1) for text in ("0.5", b"1", "2", "nan", "-0.1", "x", "")] == [0.5, 1.0, *[None] * 5]


def test_control_characters_pass_where_asked():
    assert parse_json('"a\nb"', control_characters=True) == "a\nb"


def test_shapes_that_are_not_there_are_empty():
    value = {"a": {"b": {"c": 1}}, "d": [1, {"e": 2}, "f"]}
    assert mapping(value, "a", "b") == {"c": 1}
    assert mapping(value, "a", "x", "b") == mapping(value, "d") == mapping(None, "a") == {}
    assert mappings(value["d"]) == [{"e": 2}]
    assert strings(value["d"]) == ["f"]
    assert strings("one") == ["one"]


def test_every_text_is_changed_names_included():
    assert with_texts({"a": ["b", 1, {"c": None}], "d": True}, str.upper) == {"A": ["B", 1, {"C": None}], "D": True}
