"""The published schema of the Agent Client Protocol, as a judge of what we send."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from greenroom.protocol.jsonrpc import encode_json

DATA = Path(__file__).parents[1] / "data/acp"


@cache
def _schema() -> dict[str, Any]:
    return json.loads((DATA / "schema-v1.json").read_bytes())


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the judge of one definition of the schema."""
    defs = _schema()["$defs"]
    assert name in defs
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": defs})


def validate(name: str, value: object) -> None:
    """Hold *value*, as it is sent, to one definition of the schema."""
    validator(name).validate(json.loads(encode_json(value)))


@cache
def _definitions() -> dict[tuple[str, str], str]:
    return {
        (definition["x-method"], _kind(name)): name
        for name, definition in _schema()["$defs"].items()
        if "x-method" in definition
    }


def _kind(name: str) -> str:
    kinds = ("Request", "Response", "Notification")
    return next(kind for kind in kinds if name.endswith(kind))


def check(message: dict[str, Any], *, answers: str | None = None) -> None:
    """Hold one message of an agent to the schema.

    *answers* is the method of the request that a response belongs to. The parameters
    are judged by the definition of their method, for the schema's whole takes
    anything as an extension.
    """
    validator("AgentResponse" if "method" not in message else _whole(message)).validate(
        message
    )
    assert message["jsonrpc"] == "2.0"
    definitions = _definitions()
    if "method" in message:
        kind = "Request" if "id" in message else "Notification"
        name = definitions[message["method"], kind]
        validator(name).validate(message["params"])
    elif "result" in message:
        assert answers is not None, f"a result that nobody asked for: {message}"
        validator(definitions[answers, "Response"]).validate(message["result"])
    else:
        validator("Error").validate(message["error"])


def _whole(message: dict[str, Any]) -> str:
    return "AgentRequest" if "id" in message else "AgentNotification"
