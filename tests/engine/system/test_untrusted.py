"""JSON that somebody else wrote is validated in full, or refused with the place that is wrong."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypedDict

import pytest

from benchmarks._engine.system.untrusted import Number, Size, Text, load_json, validated


class Color(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: float
    name: str


class Keys(TypedDict):
    version: Literal[2]


@dataclasses.dataclass(frozen=True)
class Document:
    point: Point
    color: Color
    count: int
    on: bool
    share: Annotated[float, Number(0, 1)] | None
    names: Mapping[Annotated[str, Text("[a-z]+")], str]
    points: frozenset[Point]
    keys: Keys
    lists: Annotated[tuple[list[float], ...], Size(1, 2)]


GOOD = {
    "point": {"x": 1, "name": "é\n"},
    "color": "red",
    "count": 3,
    "on": True,
    "share": None,
    "names": {"a": "b"},
    "points": [{"x": 0.5, "name": ""}],
    "keys": {"version": 2},
    "lists": [[1.5, 2]],
}


def test_good_values_become_what_they_are_annotated_as():
    result = validated(Document, GOOD, "document")
    lists = ([1.5, 2.0],)
    points = frozenset({Point(0.5, "")})
    assert result == Document(
        Point(1.0, "é\n"), Color.RED, 3, True, None, {"a": "b"}, points, {"version": 2}, lists
    )
    assert type(result.point.x) is float
    assert validated(Document, GOOD | {"share": 1}, "document").share == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"point": {"x": 1}}, r"document.point lacks \['name'\]"),
        ({"point": {"x": 1, "name": "", "z": 1}}, r"document.point has unknown \['z'\]"),
        ({"point": [1, ""]}, "document.point must be an object of 0 to 4000 items"),
        ({"point": {"x": True, "name": ""}}, "document.point.x must be a finite number"),
        ({"point": {"x": "1", "name": ""}}, "document.point.x must be a finite number"),
        (
            {"point": {"x": math.nan, "name": ""}},
            "document.point.x must be a finite number.* got nan",
        ),
        ({"point": {"x": 10**400, "name": ""}}, "document.point.x must be a finite number"),
        ({"point": {"x": math.inf, "name": ""}}, "document.point.x must be a finite number"),
        ({"point": {"x": 1, "name": "x" * 2001}}, "name must be a text of up to 2000 characters"),
        ({"point": {"x": 1, "name": 1}}, "document.point.name must be a text"),
        ({"color": "blue"}, r"document.color must be one of \['red'\], got 'blue'"),
        ({"count": 1.0}, "document.count must be a whole number from 0 to"),
        ({"count": -1}, "document.count must be a whole number from 0"),
        ({"count": 2**53}, "document.count must be a whole number"),
        ({"on": 1}, r"document.on must be one of \[True, False\], got 1"),
        ({"share": 1.5}, "document.share must be a finite number from 0 to 1, got 1.5"),
        ({"names": []}, "document.names must be an object"),
        ({"names": {"a\n": ""}}, "a key of document.names must be a text that matches"),
        ({"names": {"a": 1}}, r"document.names\['a'\] must be a text"),
        ({"names": dict.fromkeys(map(str, range(4001)), "")}, "an object of 0 to 4000 items"),
        ({"points": {}}, "document.points must be a list"),
        ({"points": [{"x": 1, "name": ""}, 1]}, r"document.points\[1\] must be an object"),
        ({"keys": {"version": 2.0}}, r"document.keys.version must be one of \[2\], got 2.0"),
        ({"lists": []}, "document.lists must be a list of 1 to 2 items"),
        ({"lists": [[], [], []]}, "document.lists must be a list of 1 to 2 items"),
        ({"lists": [[None]]}, r"document.lists\[0\]\[0\] must be a finite number"),
    ],
)
def test_bad_values_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        validated(Document, GOOD | changes, "document")


@pytest.mark.parametrize("kind", [object, list, dict, bytes, int | str, complex | None])
def test_a_type_without_bounds_is_no_type_to_validate(kind):
    with pytest.raises(TypeError, match="cannot be validated"):
        validated(kind, {}, "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "no JSON: Expecting value"),
        (b"\xff", "no JSON: 'utf-8' codec"),
        ('"a"'.encode("utf-16"), "no JSON: 'utf-8' codec"),
        (b'{"a":' * 500_000, "no JSON: maximum recursion"),
        (b"1" * 1_000_000, "no JSON: Exceeds the limit"),
        (b'[{"a": 1, "a": 1}]', "no JSON: a key comes twice"),
        (b"NaN", "no JSON: NaN is no number"),
    ],
)
def test_what_is_no_json_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        load_json(content)


def test_json_is_read():
    assert load_json(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert load_json(b"[Infinity]", nan=True) == [math.inf]
