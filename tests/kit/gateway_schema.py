"""The gateway's committed schema, as a judge of what is sent."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from greenroom.protocol.jsonrpc import encode_json

SCHEMA = Path(__file__).parents[2] / "docs" / "gateway.schema.json"


@cache
def schema() -> dict[str, Any]:
    """The schema that is committed."""
    return json.loads(SCHEMA.read_bytes())


@cache
def validator(reference: str) -> Draft202012Validator:
    """Return the judge of one definition, by its reference."""
    return Draft202012Validator({"$ref": reference, "$defs": schema()["$defs"]})


def check_part(method: str, part: str, value: object) -> None:
    """Hold the ``params`` or the ``result`` of a method to the schema."""
    tables = schema()["methods"] | schema()["notifications"]
    reference = tables[method][part]["$ref"]
    validator(reference).validate(json.loads(encode_json(value)))
