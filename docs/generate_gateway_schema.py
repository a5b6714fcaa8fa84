"""Write what the gateway speaks as a schema and as types for TypeScript.

``python docs/generate_gateway_schema.py`` writes docs/gateway.schema.json and
docs/gateway.d.ts; a test asserts that what is committed is what the types say.
"""

from __future__ import annotations

import json
from pathlib import Path

from greenroom.protocol.gateway import gateway_schema, typescript

SCHEMA = Path(__file__).with_name("gateway.schema.json")
TYPES = Path(__file__).with_name("gateway.d.ts")


def generated() -> dict[Path, str]:
    """Return what belongs into each file."""
    schema = gateway_schema()
    return {
        SCHEMA: json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        TYPES: typescript(schema),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
