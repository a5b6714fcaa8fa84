"""The gateway's schema is what its types say, and what it sends is in it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest
from jsonschema import Draft202012Validator, ValidationError
from kit.gateway_schema import check_part, schema, validator
from kit.stores import SETTINGS, message

from greenroom.protocol import (
    ActionBlock,
    BudgetExcess,
    CompactionChanged,
    Event,
    InputsChanged,
    InteractionSettled,
    ItemId,
    MessageId,
    MessageRetracted,
    MessagesChanged,
    PendingInput,
    Plan,
    PlanEntry,
    PlanUpdated,
    RunId,
    SessionId,
    SessionUpdated,
    StatusChanged,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
    TextBlock,
    TextPart,
)
from greenroom.protocol.gateway import (
    DEADLINES,
    EVENT,
    METHODS,
    SCOPES,
    Cut,
    EventNotice,
    event_message,
)

ROOT = Path(__file__).parents[3]
S, RUN, M, ITEM = SessionId("s"), RunId("r"), MessageId("m"), ItemId("m:1")


def generator() -> ModuleType:
    source = ROOT / "docs" / "generate_gateway_schema.py"
    spec = importlib.util.spec_from_file_location("generate_gateway_schema", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_schema_and_types_are_what_the_types_say():
    # Run `python docs/generate_gateway_schema.py` after a change of the protocol.
    for path, text in generator().generated().items():
        assert path.read_text() == text, path.name


def test_the_schema_is_one():
    Draft202012Validator.check_schema(schema())
    for definition in schema()["$defs"].values():
        Draft202012Validator.check_schema(definition)


def test_every_reference_leads_to_a_definition():
    text = json.dumps(schema())
    names = set(re.findall(r"#/\$defs/(\w+)", text))
    assert names <= set(schema()["$defs"])


def test_every_name_on_the_wire_is_written_in_camel_case():
    for name, definition in schema()["$defs"].items():
        for field in definition["properties"]:
            assert re.fullmatch("[a-z][a-zA-Z0-9]*", field), f"{name}.{field}"


def test_the_table_of_methods_is_the_schema_s():
    told = schema()["methods"]
    assert set(told) == {"_greenroom/authenticate", *METHODS}
    for name, method in METHODS.items():
        assert told[name]["scope"] == method.scope
        assert told[name]["seconds"] == DEADLINES[method.deadline] == method.seconds
        assert method.scope in SCOPES


def test_what_only_looks_needs_no_other_scope_and_what_changes_does():
    looks = {
        "list", "get", "attach", "detach", "snapshot", "messages", "message", "block",
        "search", "settings", "tree", "metrics", "journal",
    }  # fmt: skip
    reads = {name for name, method in METHODS.items() if method.scope == "read"}
    assert reads == {name for name in METHODS if name.rpartition("/")[2] in looks}


def test_parameters_that_are_not_known_are_refused():
    for method in METHODS.values():
        assert method.params.__struct_config__.forbid_unknown_fields, method.name


def test_every_text_of_a_request_is_bounded_or_by_the_frame_alone():
    # What the user says, and values of settings, may be as long as a frame.
    free = {"content", "changes", "config", "args", "env", "answer", "text", "data"}
    free |= {"mediaType", "reason", "type"}
    for method in METHODS.values():
        for field, value in _texts(method.params.__name__):
            assert field in free or "maxLength" in value or "enum" in value, field


def _texts(name: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (field, each)
        for field, value in schema()["$defs"][name]["properties"].items()
        for each in value.get("anyOf", [value])
        if each.get("type") == "string"
    ]


#### Events


TEXT = TextBlock(id=ITEM, text="hello")
ASKS = ActionBlock(
    id=ItemId("m:2"),
    action="question_request",
    origin="budget",
    tool_block_id=ItemId("m:2"),
    title="spent",
    excess=BudgetExcess(
        scope="turn", kind="tokens", limit=1.0, spent=None, raise_by=1.0
    ),
)
RECORD = message("hello", TEXT, ASKS)
EVENTS: list[Event] = [
    StreamUpdated(
        session_id=S, run_id=RUN, message_id=M, item_id=ITEM, kind="text", text="x"
    ),
    StreamUpdated(
        session_id=S, run_id=RUN, message_id=M, item_id=ITEM, kind="text", block=TEXT
    ),
    StatusChanged(session_id=S, version=1, state="generating", waiting_for="tool"),
    MessagesChanged(session_id=S, seq=1, message=RECORD),
    MessageRetracted(session_id=S, seq=2, message_id=M),
    StreamCompleted(session_id=S, seq=3, message=RECORD),
    StreamFailed(session_id=S, seq=4, message=RECORD),
    InteractionSettled(
        session_id=S, seq=5, message_id=M, interaction_id=ITEM, end="granted"
    ),
    PlanUpdated(session_id=S, seq=6, plan=Plan(1, (PlanEntry("think"),))),
    SessionUpdated(session_id=S, seq=7, settings=SETTINGS),
    InputsChanged(
        session_id=S,
        seq=8,
        input=PendingInput(
            id="i", mode="queue", parts=(TextPart("x"),), created_at=1.0, updated_at=1.0
        ),
    ),
    CompactionChanged(
        session_id=S, seq=9, trigger="manual", outcome="summarized", cursor=3
    ),
]


@pytest.mark.contract("SES-24")
def test_the_set_of_events_is_closed_and_typed():
    tags = {
        "stream/updated", "stream/completed", "stream/failed", "plan/updated",
        "session/status_changed", "session/updated", "session/messages_changed",
        "session/message_retracted", "session/inputs_changed",
        "session/compaction_changed", "interaction/settled",
    }  # fmt: skip
    event = schema()["$defs"]["EventNotice"]["properties"]["event"]
    assert set(event["discriminator"]["mapping"]) == tags
    assert {kind.__struct_config__.tag for kind in get_args(Event)} == tags
    assert {type(each) for each in EVENTS} == set(get_args(Event))


@pytest.mark.contract("SES-24")
@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("more", [False, True])
def test_every_event_decodes_under_the_schema(event: Event, more: bool):
    data = event_message(event, msgspec.json.encode(event), more=more)
    told = json.loads(data)
    assert (told["jsonrpc"], told["method"]) == ("2.0", EVENT)
    check_part(EVENT, "params", told["params"])
    decoded = msgspec.json.decode(json.dumps(told["params"]), type=EventNotice)
    assert decoded == EventNotice(event, more=more)


@pytest.mark.parametrize(
    "wrong",
    [
        {"event": {"type": "session/forgotten", "sessionId": "s", "seq": 1}},
        {"event": {"type": "session/message_retracted", "sessionId": "s"}},
        {"cut": []},
    ],
)
def test_what_is_no_event_is_refused_by_schema_and_type_alike(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        validator("#/$defs/EventNotice").validate(wrong)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(wrong), type=EventNotice)


def test_a_cut_is_in_the_schema():
    cut = Cut(message_id=M, block_id=ITEM, field="text", total=5)
    notice = EventNotice(EVENTS[3], (cut,))
    check_part(EVENT, "params", notice)


#### TypeScript


def test_the_types_for_typescript_name_every_definition_once():
    text = (ROOT / "docs" / "gateway.d.ts").read_text()
    declared = re.findall(r"^export interface (\w+) \{", text, re.MULTILINE)
    assert sorted(declared) == sorted(["Methods", "Notifications", *schema()["$defs"]])
    types = re.sub(r"/\*\*.*?\*/|//[^\n]*|\"[^\"\n]*\"", "", text, flags=re.DOTALL)
    words = set(re.findall(r"\b[A-Z]\w+", types))
    assert words <= {*declared, "Record"}
    assert text.count("{") == text.count("}")
    assert "  sessionId: string;" in text
    assert '  state: "error" | "generating" | "idle";' in text
    assert "  content: string | (TextPart | ImagePart)[];" in text
    assert "  after?: number | null;" in text


#### The guide's examples


def _examples() -> list[Any]:
    page = (ROOT / "docs/guides/gateway.md").read_text()
    blocks = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    return [json.loads(line) for block in blocks for line in block.splitlines() if line]


def test_every_example_of_the_guide_is_in_the_schema():
    asked: dict[Any, str] = {}
    checked = 0
    for example in _examples():
        method = example.get("method")
        if method is None:
            check_part(asked[example["id"]], "result", example["result"])
        elif method.startswith("_greenroom/"):
            check_part(method, "params", example["params"])
            asked[example.get("id")] = method
        else:
            continue
        checked += 1
    assert checked >= 8
