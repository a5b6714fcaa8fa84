"""From what the model sent to typed arguments, and from types to a JSON schema.

The model's text is hostile: it is bounded in size and depth before anything looks
at it, and whatever is wrong becomes a `ToolRefused` that names the problem, so that
the model can mend the call. Nothing is guessed: malformed arguments never turn into
an empty object. Only no text at all does, and then the schema decides (M12).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

import msgspec

from greenroom.protocol import safe_text

from ._port import ToolRefused

T = TypeVar("T")

MAX_ARGUMENT_CHARS: Final = 1_000_000
"""Longer arguments are refused before they are parsed."""

MAX_DEPTH: Final = 32
"""Deeper nesting is refused; no schema of a tool needs more."""

_MAX_MESSAGE = 500


def decode_arguments(raw: str, type_: type[T]) -> T:
    """Return *raw*, a call's arguments as the provider sent them, as a *type_*.

    Empty text stands for an object without members.

    Raises:
        ToolRefused: too long, not JSON, not an object, too deep, or not a *type_*.
    """
    if len(raw) > MAX_ARGUMENT_CHARS:
        raise ToolRefused(
            f"the arguments have {len(raw)} characters, more than {MAX_ARGUMENT_CHARS};"
            " send less at once"
        )
    try:
        value: Any = msgspec.json.decode(raw if raw.strip() else "{}")
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        raise _refused("the arguments are not valid JSON", exc) from exc
    except RecursionError:
        raise ToolRefused("the arguments are nested too deeply") from None
    if not isinstance(value, dict):
        kind = type(cast("object", value)).__name__
        raise ToolRefused(f"the arguments must be a JSON object, not a {kind}")
    return convert_arguments(cast("dict[str, Any]", value), type_)


def convert_arguments(arguments: dict[str, Any], type_: type[T]) -> T:
    """Return decoded *arguments* as a *type_*; no value is coerced.

    Raises:
        ToolRefused: too deep, or not a *type_*; the message names the member.
    """
    if _is_deeper(arguments, MAX_DEPTH):
        raise ToolRefused(f"the arguments are nested more than {MAX_DEPTH} levels deep")
    try:
        return msgspec.convert(arguments, type_)
    except msgspec.ValidationError as exc:
        raise _refused("the arguments don't fit the tool's schema", exc) from exc


def object_schema(type_: type[Any]) -> dict[str, Any]:
    """Return the JSON schema of *type_* in one piece, without references.

    Providers differ in what they make of ``$ref``; a flat schema works with all.

    Raises:
        TypeError: *type_* has no JSON schema, or one that contains itself.
    """
    schema = msgspec.json.schema(type_)
    named = cast("dict[str, Any]", schema.pop("$defs", {}))
    return _flat(schema, named, ())


def _flat(node: Any, named: dict[str, Any], inside: tuple[str, ...]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(node, list):
        return [_flat(item, named, inside) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    members = cast("dict[str, Any]", node)
    reference = members.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in inside:
            raise TypeError(f"type {name} contains itself; a flat schema can't say so")
        rest = {key: value for key, value in members.items() if key != "$ref"}
        return _flat(named[name], named, (*inside, name)) | rest
    # A "title" that is text is msgspec's echo of a type's name; a dict under that
    # key is a property that happens to be called title.
    return {
        key: _flat(value, named, inside)
        for key, value in members.items()
        if key != "title" or not isinstance(value, str)
    }


def _is_deeper(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [item for node in level for item in _items(node)]
        if not level:
            return False
    return True


def _items(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(cast("dict[str, object]", node).values())
    if isinstance(node, list | tuple):
        return list(cast("list[object]", node))
    return []


def _refused(what: str, exc: Exception) -> ToolRefused:
    problem = safe_text(str(exc))[:_MAX_MESSAGE]
    return ToolRefused(f"{what}: {problem[:1].lower()}{problem[1:]}")
