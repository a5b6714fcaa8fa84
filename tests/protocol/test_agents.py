"""Agents as values: exact variants, a strict decoder, a tolerant one, one mapper."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from greenroom.protocol import (
    AgentConfig,
    AgentDescriptor,
    AgentRow,
    AgentUnavailableError,
    Launch,
    ManualAcpAgent,
    NativeAgent,
    RegistryAcpAgent,
    RegistryReference,
    RemoteProtocolError,
    catalogue_entry,
    chosen_agent,
    decode_agent,
    descriptor_from_json,
)
from greenroom.protocol.gateway import agent_dto, dto_kind

REGISTRY = {"id": "r", "version": "1.0", "distribution": {"npx": {"package": "p"}}}


def row(kind: str = "native", source: str = "manual", **fields: Any) -> AgentRow:
    config = fields.pop("config", None)
    text = config if config is None or isinstance(config, str) else json.dumps(config)
    kept: dict[str, Any] = {"id": "a", "name": "A", "created_at": 1.0}
    kept |= {"updated_at": 1.0} | fields
    return AgentRow(kind=kind, source=source, config=text, **kept)


VARIANTS: list[AgentDescriptor] = [
    NativeAgent(source="builtin", id="default", name="B", config=AgentConfig()),
    NativeAgent(
        source="manual",
        id="native-1",
        name="M",
        avatar={"kind": "letter"},
        config=AgentConfig(system_prompt="p", enabled_skill_names=("s",)),
    ),
    ManualAcpAgent(id="x", name="X", launch=Launch("cmd", ("a",), {"K": "V"})),
    RegistryAcpAgent(
        id="y",
        name="Y",
        registry=RegistryReference(**REGISTRY),
        install_state="installed",
    ),
]


@pytest.mark.contract("AGT-02")
@pytest.mark.parametrize("agent", VARIANTS, ids=lambda agent: f"{agent.kind}")
def test_every_variant_comes_back_as_it_went(agent: AgentDescriptor) -> None:
    data = msgspec.json.encode(agent)
    back = descriptor_from_json(data)
    assert back == agent
    assert type(back) is type(agent)


@pytest.mark.contract("AGT-02")
@pytest.mark.parametrize("agent", VARIANTS, ids=lambda agent: f"{agent.kind}")
def test_a_variant_has_its_own_fields_and_no_others(agent: AgentDescriptor) -> None:
    members = json.loads(msgspec.json.encode(agent))
    base = {"id", "kind", "name", "enabled", "protected", "description", "icon"}
    own = {
        NativeAgent: {"config"},
        ManualAcpAgent: {"launch"},
        RegistryAcpAgent: {"registry", "installState"},
    }[type(agent)]
    assert members.keys() == base | {"avatar", "source"} | own
    with pytest.raises(AgentUnavailableError, match="parent"):
        descriptor_from_json(json.dumps(members | {"parent": "b"}))


@pytest.mark.contract("AGT-02")
@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("native", "registry", "invalid-source"),
        ("acp", "builtin", "invalid-source"),
        ("robot", "manual", "unknown-kind"),
        (None, "manual", "unknown-kind"),
        (["native"], "manual", "unknown-kind"),
    ],
)
def test_a_kind_and_a_source_that_do_not_go_together_are_told(
    kind: Any, source: str, reason: str
) -> None:
    data = json.dumps({"id": "a", "name": "A", "kind": kind, "source": source})
    with pytest.raises(AgentUnavailableError) as caught:
        descriptor_from_json(data)
    assert caught.value.reason == reason


@pytest.mark.contract("AGT-07")
@pytest.mark.parametrize(
    ("bad", "reason", "field"),
    [
        (row("robot"), "unknown-kind", "kind"),
        (row("deepchat"), "unknown-kind", "kind"),
        (row("native", "registry"), "invalid-source", "source"),
        (row("acp", "builtin"), "invalid-source", "source"),
        (row(config="{"), "invalid-config", "config"),
        (row(config="[]"), "invalid-config", "config"),
        (row(config={"systemPrompt": 1}), "invalid-config", "config"),
        (row(config={"permissionMode": "root"}), "invalid-config", "config"),
        (row("acp", config="{"), "invalid-config", "config"),
        (row("acp"), "missing-manual-command", "command"),
        (row("acp", config={"command": " \t"}), "missing-manual-command", "command"),
        (row("acp", config={"command": 1}), "missing-manual-command", "command"),
        (row("acp", config={"command": "c\0"}), "invalid-config", "command"),
        (row("acp", config={"command": "c", "args": "a"}), "invalid-config", "args"),
        (row("acp", config={"command": "c", "args": [1]}), "invalid-config", "args"),
        (row("acp", config={"command": "c", "args": None}), "invalid-config", "args"),
        (row("acp", config={"command": "c", "env": []}), "invalid-config", "env"),
        (row("acp", config={"command": "c", "env": {"K": 1}}), "invalid-config", "env"),
        (row("acp", "registry"), "missing-registry-reference", "id"),
        (
            row("acp", "registry", config=REGISTRY | {"version": " "}),
            "missing-registry-reference",
            "version",
        ),
        (
            row("acp", "registry", config=REGISTRY | {"distribution": {}}),
            "missing-registry-reference",
            "distribution",
        ),
    ],
)
def test_a_row_that_can_t_be_run_says_which_field_and_why(
    bad: AgentRow, reason: str, field: str
) -> None:
    with pytest.raises(AgentUnavailableError) as caught:
        decode_agent(bad)
    assert caught.value.code == "AGENT_UNAVAILABLE"
    assert (caught.value.reason, caught.value.field) == (reason, field)


@pytest.mark.contract("AGT-07")
def test_a_manual_command_is_trimmed_and_needs_nothing_else() -> None:
    agent = decode_agent(row("acp", config={"command": "  run  "}))
    assert isinstance(agent, ManualAcpAgent)
    assert agent.launch == Launch("run", (), {})


def test_a_registry_agent_tells_its_install_state() -> None:
    agent = decode_agent(
        row("acp", "registry", config=REGISTRY, state='{"install":"installed"}')
    )
    assert isinstance(agent, RegistryAcpAgent)
    assert agent.install_state == "installed"
    assert agent.registry == RegistryReference(**REGISTRY)


@pytest.mark.contract("AGT-06")
@pytest.mark.parametrize(
    "config", ["{", "[1]", "\x00", "[" * 100_000, '"text"', "{}x", "nan"]
)
def test_a_list_shows_a_row_whose_configuration_can_t_be_read(config: str) -> None:
    entry = catalogue_entry(row(config=config, avatar="[" * 100_000))
    assert (entry.id, entry.config, entry.avatar) == ("a", None, None)
    assert entry.unavailable == "invalid-config"


@pytest.mark.contract("AGT-10")
def test_the_builtin_agent_is_meant_only_when_nobody_names_one() -> None:
    assert chosen_agent(None, None) == "default"
    assert chosen_agent(None, "mine") == "mine"
    assert chosen_agent("named", "mine") == "named"
    assert chosen_agent("", "mine") == ""


@pytest.mark.contract("AGT-05")
@pytest.mark.parametrize("kind", ["native", "acp"])
def test_the_wire_has_both_old_names_and_they_are_read_back(kind: str) -> None:
    dto = json.loads(msgspec.json.encode(agent_dto(catalogue_entry(row(kind)))))
    old = {"native": "deepchat", "acp": "acp"}[kind]
    assert (dto["kind"], dto["type"], dto["agentType"]) == (kind, old, old)
    for name in ("type", "agentType"):
        assert dto_kind(json.dumps({"id": "a", name: old})) == kind
    assert dto_kind(json.dumps(dto)) == kind


@pytest.mark.contract("AGT-05")
@pytest.mark.parametrize(
    "told", [{}, {"type": "robot"}, {"kind": "native", "type": "acp"}, {"type": 1}, []]
)
def test_a_dto_without_one_kind_is_refused(told: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        dto_kind(json.dumps(told))


@pytest.mark.contract("AGT-05")
def test_inside_there_is_no_agent_without_a_kind_and_no_old_name_is_read() -> None:
    with pytest.raises(AgentUnavailableError) as caught:
        descriptor_from_json(
            json.dumps({"id": "a", "name": "A", "type": "acp", "agentType": "acp"})
        )
    assert caught.value.reason == "unknown-kind"
