"""Arguments from the model: bounded, typed, and refused in words it can act on."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.actors.tools import ToolRefused, decode_arguments, object_schema


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inner."""

    label: Annotated[str, msgspec.Meta(max_length=3)]


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample."""

    path: Annotated[str, msgspec.Meta(description="where")]
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    items: tuple[Inner, ...] = ()
    mode: Literal["a", "b"] = "a"


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No member at all."""


class Endless(msgspec.Struct, frozen=True):
    """Contains itself."""

    children: tuple[Endless, ...] = ()


def test_good_arguments_become_a_value():
    assert decode_arguments('{"path": "x", "count": 2}', Sample) == Sample("x", 2)


@pytest.mark.parametrize("raw", ["", "  \n"])
def test_no_text_is_an_object_without_members_if_the_schema_allows_it(raw):
    assert decode_arguments(raw, Nothing) == Nothing()
    with pytest.raises(ToolRefused, match="missing required field `path`"):
        decode_arguments(raw, Sample)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ('{"path": ', "not valid JSON"),
        ('{"path": "a"} {"path": "b"}', "not valid JSON"),
        ('{"path": "\\ud800"}', "not valid JSON"),
        ('{"path": "\ud800"}', "not valid JSON"),
        ('{"path": NaN}', "not valid JSON"),
        ("[1]", "must be a JSON object, not a list"),
        ("null", "must be a JSON object, not a NoneType"),
        ('"x"', "must be a JSON object, not a str"),
        ('{"path": 1}', r"expected `str`, got `int` - at `\$.path`"),
        ('{"path": "x", "count": true}', "expected `int`, got `bool`"),
        ('{"path": "x", "count": "2"}', "expected `int`, got `str`"),
        ('{"path": "x", "count": 2.0}', "expected `int`, got `float`"),
        ('{"path": "x", "count": 0}', "expected `int` >= 1"),
        ('{"path": "x", "mode": "c"}', "invalid enum value 'c'"),
        ('{"path": "x", "other": 1}', "unknown field `other`"),
        ('{"path": "x", "items": [{"label": "long"}]}', r"\$.items\[0\].label"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_arguments_are_refused_by_naming_the_problem(raw, problem):
    with pytest.raises(ToolRefused, match=problem):
        decode_arguments(raw, Sample)


def test_arguments_of_ten_megabytes_are_refused_unparsed():
    with pytest.raises(ToolRefused, match="characters, more than"):
        decode_arguments('{"path": "' + "x" * 10_000_000 + '"}', Sample)


def test_depth_is_bounded_where_the_schema_does_not_bound_it():
    nested = '{"a":' * 40 + "1" + "}" * 40
    with pytest.raises(ToolRefused, match="levels deep"):
        decode_arguments(nested, dict[str, Any])
    assert decode_arguments('{"a": [[[1]]]}', dict[str, Any]) == {"a": [[[1]]]}


def test_a_refusal_is_short_whatever_was_sent():
    raw = json.dumps({"path": "x", "y" * 100_000: 1})
    with pytest.raises(ToolRefused) as caught:
        decode_arguments(raw, Sample)
    assert len(str(caught.value)) < 1_000


@given(st.text())
def test_any_text_gives_a_value_or_a_refusal(raw):
    try:
        assert isinstance(decode_arguments(raw, dict[str, Any]), dict)
    except ToolRefused as refused:
        str(refused).encode()


def test_a_schema_is_flat_exact_and_closed():
    schema = object_schema(Sample)
    text = json.dumps(schema)
    assert "$ref" not in text
    assert "$defs" not in text
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["path"]
    assert schema["properties"]["path"] == {"type": "string", "description": "where"}
    assert schema["properties"]["items"]["items"]["additionalProperties"] is False


def test_a_property_called_title_stays_in_the_schema():
    titled = msgspec.defstruct("Titled", [("title", str)])
    assert object_schema(titled)["properties"] == {"title": {"type": "string"}}


def test_a_type_that_contains_itself_has_no_flat_schema():
    with pytest.raises(TypeError, match="contains itself"):
        object_schema(Endless)
