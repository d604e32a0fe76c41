"""JSON of others: what is read, and what is refused with one kind of error."""

from __future__ import annotations

import pytest

from swe_ai_fleet.domain.json_values import (
    json_object,
    json_or_none,
    mapping,
    mappings,
    parse_json,
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
