"""Validate JSON that somebody else wrote against type annotations. Needs no package.

A type says what a value must be: ``str``, ``int``, ``float``, ``bool``, ``Literal``, an enum, a
dataclass, a named tuple, a ``TypedDict``, ``X | None``, and ``list``, ``tuple[X, ...]``,
``frozenset``, ``dict`` or ``Mapping`` of these. ``Annotated`` narrows it with :class:`Number`,
:class:`Text` or :class:`Size`. Whatever is not annotated has their defaults, so nothing is without
a bound:

>>> class Answer(TypedDict):
...     share: Annotated[float, Number(0, 1)]
...     names: list[Annotated[str, Text("[a-z]+")]]
>>> validated(Answer, load_json(b'{"share": 2, "names": []}'), "answer")
ValueError: answer.share must be a finite number from 0 to 1, got 2
"""

import dataclasses
import enum
import functools
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_COLLECTIONS = (tuple, list, frozenset)


class Number(NamedTuple):
    """Bounds of an ``int`` or a ``float``, both included; NaN is within none."""

    least: float = -1e300
    most: float = 1e300


class Text(NamedTuple):
    """The most characters of a ``str``, and a regular expression of all of it."""

    pattern: str = r"(?s:.*)"
    most: int = 2000


class Size(NamedTuple):
    """Bounds of the number of items of a list or an object, both included."""

    least: int = 0
    most: int = 4000


_COUNT = Number(0, 2**53 - 1)


def load_json(content: bytes, nan: bool = False) -> Any:
    """What UTF-8 JSON says. The caller bounds the size of ``content``.

    ``nan``: whether NaN and infinities are read, which standard JSON does not have. Raises
    ValueError if it is no UTF-8, no JSON, nested too deep or has a key twice in one object.
    """
    constant = None if nan else _refused
    try:
        text = content.decode("utf-8")
        return json.loads(text, parse_constant=constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error!s:.200}") from None


def plain(value: Any) -> Any:
    """The value as JSON has it: what :func:`validated` makes of this is the value."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, _COLLECTIONS):
        return [plain(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    return value.value if isinstance(value, enum.Enum) else value


def _refused(name: str):
    raise ValueError(f"{name} is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key comes twice in one object")
    return made


def validated(kind: Any, value: object, path: str, limit: Any = None) -> Any:
    """``value`` as an instance of the annotated type ``kind``.

    Every key of a dataclass, a named tuple or a ``TypedDict`` must be there, and no other may.
    ``path`` is what messages call the value; ``limit`` narrows ``kind``, as ``Annotated`` does.

    Raises ValueError if the value is of another type or out of bounds, saying where, and TypeError
    if ``kind`` is not among the types that are listed above.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return validated(arguments[0], value, path, arguments[1])
    if origin in (typing.Union, types.UnionType) and arguments[1:] == (type(None),):
        return None if value is None else validated(arguments[0], value, path)
    if origin is typing.Literal:
        return _chosen(arguments, value, path)
    if origin in _COLLECTIONS:
        items = _sized(list, value, path, limit or Size())
        return origin(validated(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if origin in (dict, Mapping):
        items = _sized(dict, value, path, limit or Size())
        keys = [validated(arguments[0], key, f"a key of {path}") for key in items]
        return {key: validated(arguments[1], items[key], f"{path}[{key[:60]!r}]") for key in keys}
    if kind is str:
        return _text(value, path, limit or Text())
    if kind is bool:
        return _chosen((True, False), value, path)
    if kind in (int, float):
        return _number(kind, value, path, limit or (_COUNT if kind is int else Number()))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(_chosen([member.value for member in kind], value, path))
    return _record(kind, value, path)


def _chosen(choices: Iterable, value: object, path: str) -> object:
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise _wrong(path, f"one of {list(choices)}", value)
    return value


def _sized(kind: type[dict] | type[list], value: object, path: str, limit: Size) -> Any:
    if not isinstance(value, kind) or not limit.least <= len(value) <= limit.most:
        name = "an object" if kind is dict else "a list"
        raise _wrong(path, f"{name} of {limit.least} to {limit.most} items", value)
    return value


def _text(value: object, path: str, limit: Text) -> str:
    if not isinstance(value, str) or len(value) > limit.most:
        raise _wrong(path, f"a text of up to {limit.most} characters", value)
    if not re.fullmatch(limit.pattern, value):
        raise _wrong(path, f"a text that matches {limit.pattern}", value)
    return value


def _number(kind: type, value: object, path: str, limit: Number) -> float:
    is_number = type(value) is int or (type(value) is float and kind is float)
    if not (is_number and limit.least <= value <= limit.most):  # type: ignore[operator]
        what = "whole" if kind is int else "finite"
        raise _wrong(path, f"a {what} number from {limit.least:g} to {limit.most:g}", value)
    return kind(value)


def _record(kind: Any, value: object, path: str) -> Any:
    is_record = dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)
    if not is_record and not hasattr(kind, "_fields"):
        raise TypeError(f"{kind!r} cannot be validated")
    hints = _hints(kind)
    values = _sized(dict, value, path, Size())
    for names, what in ((hints.keys() - values, "lacks"), (values.keys() - hints, "has unknown")):
        if names:
            raise ValueError(f"{path} {what} {sorted(map(str, names))!s:.200}")
    return kind(**{name: validated(hints[name], values[name], f"{path}.{name}") for name in hints})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _wrong(path: str, expected: str, value: object) -> ValueError:
    return ValueError(f"{path} must be {expected}, got {repr(value)[:80]}")
