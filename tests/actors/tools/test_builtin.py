"""The built-in tools together: names, schemas, what they may do."""

from __future__ import annotations

import json

import pytest
from kit.operations import FakeOperation, builtin, check

from greenroom.actors.tools import ToolRefused, ToolRegistry, builtin_tools

NAMES = [
    "read",
    "write",
    "edit",
    "list",
    "find",
    "grep",
    "shell",
    "ask_user",
    "update_plan",
]


def test_all_are_there_and_fit_the_registry():
    assert [tool.definition.name for tool in builtin_tools()] == NAMES
    registry = ToolRegistry()
    registry.contribute(*builtin_tools())
    assert [d.name for d in registry.definitions()] == sorted(NAMES)


def test_what_changes_nothing_is_read_only_and_may_overlap():
    reading = {"read", "list", "find", "grep"}
    assert {t.definition.name for t in builtin_tools() if t.parallel_safe} == reading
    read_only = {t.definition.name for t in builtin_tools() if t.read_only}
    assert read_only == reading | {"ask_user"}


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_flat_closed_and_say_what_their_members_are(name):
    schema = builtin(name).definition.parameters
    assert "$ref" not in json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert builtin(name).definition.description


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", [{"surplus": 1}, {"path": 1}, {"limit": True}])
async def test_bad_arguments_are_refused_at_both_doors(context, name, arguments):
    operation = FakeOperation(context)
    with pytest.raises(ToolRefused, match="don't fit the tool's schema"):
        await builtin(name).precheck(arguments, context)
    with pytest.raises(ToolRefused, match="don't fit the tool's schema"):
        await builtin(name).run(arguments, operation)
    assert operation.order == []


@pytest.mark.parametrize(
    ("name", "arguments", "asks"),
    [
        ("read", {"path": "x"}, False),
        ("list", {}, False),
        ("find", {"pattern": "*"}, False),
        ("grep", {"pattern": "x"}, False),
        ("update_plan", {"entries": []}, False),
        ("write", {"path": "x", "content": ""}, True),
        ("edit", {"path": "x", "old_text": "text", "new_text": ""}, True),
        ("shell", {"command": "true"}, True),
    ],
)
async def test_what_changes_something_asks(context, name, arguments, asks):
    (context.workspace / "x").write_text("text")
    needs = await check(name, context, **arguments)
    assert (needs.permission is not None) == asks
    assert not needs.always_ask
