"""Decoding as the schema asks for it: strict, but for the fields it marks.

The schema says of many fields that a malformed value is no reason to fail the whole
message. A field says so by its annotation:

    title: Annotated[str | None, DEFAULT_ON_ERROR] = None

What fits is decoded at once; only what does not is looked at field by field.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

T = TypeVar("T")

DEFAULT_ON_ERROR: Final = msgspec.Meta(extra={"on_error": "default"})
"""A value that does not fit counts as absent."""

SKIP_INVALID_ITEMS: Final = msgspec.Meta(extra={"items": "skip"})
"""Items that do not fit are left out."""

DEFAULT_ON_NULL: Final = msgspec.Meta(extra={"on_null": "empty"})
"""Null is an empty array. A key that is required is still required."""


def decode_lenient(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return *raw* as a *kind*, marked fields being forgiven.

    Raises:
        msgspec.ValidationError: another field does not fit.
        msgspec.DecodeError: *raw* is not JSON.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        value: Any = msgspec.json.decode(raw)
        return msgspec.convert(_mended(value, kind), kind)


def _mended(value: Any, kind: Any) -> Any:  # noqa: ANN401 - JSON and annotations
    origin = get_origin(kind)
    if origin is Annotated:
        return _mended(value, get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return _mended_union(value, get_args(kind))
    if origin is tuple and isinstance(value, list):
        item_kind = get_args(kind)[0]
        return [_mended(item, item_kind) for item in cast("list[Any]", value)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _mended_struct(value, kind)
    return value


def _mended_union(value: Any, kinds: tuple[Any, ...]) -> Any:  # noqa: ANN401
    for kind in kinds:
        mended = _mended(value, kind)
        if mended is not value and _fits(mended, kind):
            return mended
    return value


def _mended_struct(value: Any, kind: type[msgspec.Struct]) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    mended = dict(cast("dict[str, Any]", value))
    for field in msgspec.structs.fields(kind):
        if field.encode_name in mended:
            _mend_field(mended, field)
    return mended


def _mend_field(members: dict[str, Any], field: FieldInfo) -> None:
    name, marks = field.encode_name, _marks(field.type)
    value = _mended(members[name], field.type)
    if value is None and "on_null" in marks:
        value = []
    if isinstance(value, list) and "items" in marks:
        item_kind = _item_kind(field.type)
        value = [item for item in cast("list[Any]", value) if _fits(item, item_kind)]
    members[name] = value
    if "on_error" in marks and not _fits(value, field.type):
        del members[name]


def _marks(kind: Any) -> dict[str, str]:  # noqa: ANN401
    found: dict[str, str] = {}
    if get_origin(kind) is Annotated:
        for mark in get_args(kind)[1:]:
            found |= mark.extra or {}
    return found


def _item_kind(kind: Any) -> Any:  # noqa: ANN401
    return get_args(get_args(kind)[0])[0]


def _fits(value: Any, kind: Any) -> bool:  # noqa: ANN401
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True
