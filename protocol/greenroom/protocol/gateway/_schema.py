"""The protocol as a schema: JSON Schema (Draft 2020-12), and types for TypeScript.

Both are made from the types in this package, so that they say what is so. What is in
the schema beside the types (methods, notifications, close codes, limits) is under keys
that JSON Schema does not know, and lets be.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from ._bounds import MAX_FRAME_BYTES, MAX_PAGE, MAX_PARTS, MAX_SLICE
from ._clients import (
    AUTHENTICATE,
    ENDED,
    EVENT,
    Authenticate,
    Authenticated,
    CloseCode,
    EndedNotice,
    EventNotice,
)
from ._methods import DEADLINES, MAX_SUBMISSIONS, METHODS

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF: Final = "#/$defs/"

Schema = dict[str, Any]


def gateway_schema() -> Schema:
    """Return the schema of every request, result and notification."""
    types: list[type[msgspec.Struct]] = [Authenticate, Authenticated]
    types += [EventNotice, EndedNotice]
    for method in METHODS.values():
        types += [method.params, method.result]
    _, definitions = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    return {
        "$schema": _DIALECT,
        "title": "greenroom gateway",
        "description": "JSON-RPC 2.0 over WebSocket at /acp, beside ACP version 1.",
        "methods": _methods(),
        "notifications": {
            EVENT: {"params": _ref(EventNotice)},
            ENDED: {"params": _ref(EndedNotice)},
        },
        "closeCodes": {str(code.value): code.name for code in CloseCode},
        "limits": {
            "frameBytes": MAX_FRAME_BYTES,
            "pageRows": MAX_PAGE,
            "promptParts": MAX_PARTS,
            "sliceCharacters": MAX_SLICE,
            "submissions": MAX_SUBMISSIONS,
        },
        "$defs": {name: definitions[name] for name in sorted(definitions)},
    }


def _methods() -> Schema:
    told: Schema = {
        AUTHENTICATE: {
            "params": _ref(Authenticate),
            "result": _ref(Authenticated),
            "scope": None,
            "seconds": None,
        }
    }
    for name, method in METHODS.items():
        told[name] = {
            "params": _ref(method.params),
            "result": _ref(method.result),
            "scope": method.scope,
            "seconds": DEADLINES[method.deadline],
        }
    return told


def _ref(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": _REF + kind.__name__}


#### TypeScript


def typescript(schema: Schema) -> str:
    """Return the types of *schema*, which is `gateway_schema`'s, as declarations."""
    lines = [
        "// The gateway's protocol. Generated; see docs/guides/gateway.md.",
        "",
        *_table("Methods", schema["methods"], ("params", "result")),
        *_table("Notifications", schema["notifications"], ("params",)),
    ]
    for name, definition in schema["$defs"].items():
        lines += _declaration(name, definition)
    return "\n".join(lines).rstrip() + "\n"


def _table(
    name: str, rows: Mapping[str, Schema], columns: Iterable[str]
) -> Iterator[str]:
    yield f"export interface {name} {{"
    for key, row in rows.items():
        cells = "; ".join(f"{column}: {_type(row[column])}" for column in columns)
        yield f"  {json.dumps(key)}: {{ {cells} }};"
    yield "}"
    yield ""


def _declaration(name: str, definition: Schema) -> Iterator[str]:
    yield from _comment(definition.get("description", ""))
    properties = cast("Mapping[str, Schema]", definition.get("properties", {}))
    required = set(definition.get("required", ()))
    yield f"export interface {name} {{"
    for key, value in properties.items():
        mark = "" if key in required else "?"
        yield f"  {key}{mark}: {_type(value)};"
    yield "}"
    yield ""


def _comment(text: str) -> Iterator[str]:
    lines = inspect.cleandoc(text).replace("*/", "* /").splitlines()
    if not lines:
        return
    yield "/**"
    yield from (f" * {line}".rstrip() for line in lines)
    yield " */"


def _type(schema: Schema) -> str:
    match schema:
        case {"$ref": str(ref)}:
            return ref.removeprefix(_REF)
        case {"enum": _}:
            return " | ".join(map(json.dumps, schema["enum"]))
        case {"anyOf": _}:
            return " | ".join(dict.fromkeys(map(_type, schema["anyOf"])))
        case {"type": "array", "items": {**items}}:
            return f"({_type(cast('Schema', items))})[]"
        case {"type": "object", "additionalProperties": {**values}}:
            return f"Record<string, {_type(cast('Schema', values))}>"
        case {"type": str(kind)}:
            return _PLAIN[kind]
        case _:
            return "unknown"


_PLAIN: Final = {
    "array": "unknown[]",
    "boolean": "boolean",
    "integer": "number",
    "null": "null",
    "number": "number",
    "object": "Record<string, unknown>",
    "string": "string",
}
