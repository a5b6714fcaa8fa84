"""What is in force for an agent: defaults, its own text, nothing else; and patches."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    CONFIG_KEYS,
    FAIL_CLOSED,
    AgentConfig,
    AgentRefusedError,
    SubagentSlot,
    config_text,
    decode_config,
    delegation_problem,
    merge_patch,
    normal_pairs,
    normal_slots,
    normal_threshold,
    patched_config,
    resolve,
    resolve_merged,
)

GOLDEN = {
    "defaultModel": None,
    "assistantModel": None,
    "visionModel": None,
    "imageModel": None,
    "projectPath": None,
    "systemPrompt": "",
    "permissionMode": None,
    "disabledTools": [],
    "enabledSkillNames": None,
    "enabledMcpServerIds": None,
    "subagentEnabled": True,
    "subagents": [
        {"id": "explorer", "target": "self"},
        {"id": "implementer", "target": "self"},
        {"id": "reviewer", "target": "self"},
    ],
    "autoCompactionEnabled": True,
    "autoCompactionTriggerThreshold": 80,
    "autoCompactionRetainRecentPairs": 2,
    "memoryEnabled": False,
    "memoryEmbedding": None,
    "memoryExtractionModel": None,
    "memoryRetrieval": None,
    "memoryInjectionTokenBudget": None,
    "personaEvolutionEnabled": False,
}
SLOT = {"id": "s", "target": "self"}


@pytest.mark.contract("AGT-12")
@pytest.mark.parametrize("text", [None, "", "  ", "{}", '{"systemPrompt":null}'])
def test_the_defaults_are_these_and_always_the_same(text: str | None) -> None:
    assert json.loads(msgspec.json.encode(resolve(text))) == GOLDEN
    assert resolve(text) == resolve(text)


@pytest.mark.contract("AGT-12")
def test_no_server_is_not_the_same_as_all_servers() -> None:
    assert resolve('{"enabledMcpServerIds":[]}').enabled_mcp_server_ids == ()
    assert resolve('{"enabledMcpServerIds":null}').enabled_mcp_server_ids is None


@pytest.mark.contract("AGT-13")
@given(st.integers(-20, 120) | st.integers())
def test_a_threshold_and_pairs_come_within_their_bounds(value: int) -> None:
    stored = {"autoCompactionTriggerThreshold": value}
    config = resolve(json.dumps(stored | {"autoCompactionRetainRecentPairs": value}))
    threshold = config.auto_compaction_trigger_threshold
    pairs = config.auto_compaction_retain_recent_pairs
    assert config.subagents, "it was not refused as a whole"
    assert 5 <= threshold <= 95
    assert threshold % 5 == 0
    assert normal_threshold(threshold) == threshold
    assert 1 <= pairs <= 10
    assert normal_pairs(pairs) == pairs
    assert abs(threshold - max(5, min(95, value))) <= 2
    assert pairs == max(1, min(10, value))


@pytest.mark.contract("AGT-08")
def test_a_stored_parent_gives_nothing() -> None:
    stored = {"inheritsFrom": "default", "parent": "default", "template": {"a": 1}}
    assert resolve(json.dumps(stored)) == AgentConfig()


@pytest.mark.contract("AGT-15")
@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", "1", '{"subagents":1}', '{"systemPrompt":[]}', "[" * 50_000],
)
def test_text_that_can_t_be_decoded_allows_nothing(text: str) -> None:
    assert resolve(text) == FAIL_CLOSED
    assert FAIL_CLOSED.subagent_enabled
    assert FAIL_CLOSED.subagents == ()
    assert FAIL_CLOSED.enabled_skill_names == FAIL_CLOSED.enabled_mcp_server_ids == ()
    assert FAIL_CLOSED.permission_mode == "default"
    assert delegation_problem(resolve(text)) == "no_valid_slots"


def test_delegation_needs_the_policy_and_a_slot() -> None:
    assert delegation_problem(AgentConfig()) is None
    assert delegation_problem(AgentConfig(subagent_enabled=False)) == "policy_disabled"


def test_slots_that_are_not_valid_are_dropped_and_five_are_kept() -> None:
    told: list[Any] = [
        {"id": " a ", "target": " self "},
        {"id": "a", "target": "other"},
        {"id": "", "target": "self"},
        {"id": "b", "target": "  "},
        {"id": "c"},
        "text",
        {"id": "d", "target": "self", "title": "t" * 2_001},
        *({"id": f"n{n}", "target": "x"} for n in range(6)),
    ]
    slots = normal_slots(told)
    assert slots[0] == SubagentSlot(id="a", target="self")
    assert [slot.id for slot in slots] == ["a", "n0", "n1", "n2", "n3"]


@pytest.mark.contract("AGT-18")
@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        # The examples of RFC 7396, those whose patch is an object.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_patch_is_merged_as_the_standard_says(
    target: Any, patch: dict[str, Any], merged: dict[str, Any]
) -> None:
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == merged
    assert (target, patch) == before


@pytest.mark.contract("AGT-18")
def test_a_patch_leaves_what_it_does_not_name() -> None:
    stored = '{"later":{"x":1},"systemPrompt":"a","subagentEnabled":false}'
    text = patched_config(stored, {"subagentEnabled": True, "subagents": [SLOT]})
    assert json.loads(text) == {
        "later": {"x": 1},
        "systemPrompt": "a",
        "subagentEnabled": True,
        "subagents": [SLOT],
    }


@pytest.mark.contract("AGT-18")
@pytest.mark.parametrize(
    ("stored", "patch", "code"),
    [
        (None, {"subagentEnabled": True, "subagents": []}, "no_valid_slots"),
        (None, {"subagentEnabled": True, "subagents": [{}]}, "no_valid_slots"),
        ('{"subagentEnabled":true}', {"subagents": []}, "no_valid_slots"),
        ('{"subagents":[]}', {"subagentEnabled": True}, "no_valid_slots"),
        (None, {"systemPromt": "x"}, "invalid_patch"),
        (None, {"systemPrompt": 1}, "invalid_patch"),
        (None, {"systemPrompt": "p" * 100_001}, "invalid_patch"),
        (None, {"systemPrompt": "\ud800"}, "invalid_patch"),
        (None, {"disabledTools": [str(n) for n in range(1_001)]}, "invalid_patch"),
        (None, {"permissionMode": "root"}, "invalid_patch"),
        (None, {"defaultModel": {"provider": "p"}}, "invalid_patch"),
        ("{", {"systemPrompt": "x"}, "invalid_patch"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(
    stored: str | None, patch: dict[str, Any], code: str
) -> None:
    with pytest.raises(AgentRefusedError) as caught:
        patched_config(stored, patch)
    assert caught.value.code == code


def test_a_patch_of_any_depth_or_size_is_refused_not_followed() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"memoryRetrieval": deep}
    with pytest.raises(AgentRefusedError, match="deep"):
        patched_config(None, deep)
    big = {"memoryRetrieval": {"k": ["x" * 300_000]}}
    with pytest.raises(AgentRefusedError):
        patched_config(None, big)


def test_a_key_that_is_not_known_can_be_taken_away() -> None:
    assert patched_config('{"old":1}', {"old": None}) == "{}"


#### The rule of the older system

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "systemPrompt": st.text(max_size=5),
    "disabledTools": st.lists(st.sampled_from(["a", "b"]), max_size=2),
    "enabledSkillNames": st.none() | st.lists(st.sampled_from(["s"]), max_size=1),
    "enabledMcpServerIds": st.none() | st.just([]),
    "subagentEnabled": st.booleans(),
    "subagents": st.lists(st.just(SLOT), max_size=1),
    "permissionMode": st.sampled_from([None, "default", "full_access", "root"]),
    "autoCompactionTriggerThreshold": st.integers(-10, 200),
    "unknown": st.integers(),
}
TEXTS = (
    st.none()
    | st.just("{")
    | st.fixed_dictionaries({}, optional=VALUES).map(json.dumps)
)


@pytest.mark.contract("AGT-20")
@given(TEXTS, TEXTS)
def test_what_was_in_force_is_in_force_when_it_stands_alone(
    builtin: str | None, text: str | None
) -> None:
    merged = resolve_merged(builtin, text)
    alone = config_text(merged.config, text)
    assert resolve(alone) == merged.config
    assert json.loads(alone).keys() >= CONFIG_KEYS
    # Done again, under any other builtin agent, nothing changes.
    assert resolve_merged('{"systemPrompt":"other"}', alone).config == merged.config


@pytest.mark.contract("AGT-20")
def test_the_builtin_agent_lay_under_what_an_agent_said() -> None:
    builtin = '{"systemPrompt":"b","disabledTools":["x"]}'
    merged = resolve_merged(builtin, '{"systemPrompt":"own"}')
    assert merged.config == AgentConfig(system_prompt="own", disabled_tools=("x",))
    assert resolve_merged(builtin, None).config == decode_config(builtin)
    corrupt = resolve_merged(builtin, "{")
    assert (corrupt.config, corrupt.recovered) == (FAIL_CLOSED, True)
    assert resolve_merged("{", '{"systemPrompt":"own"}').config.system_prompt == "own"
