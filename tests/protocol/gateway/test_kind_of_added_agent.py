from __future__ import annotations

import msgspec
import pytest

from greenroom.protocol.gateway import AddAgent


@pytest.mark.parametrize("name", ["kind", "type", "agentType"])
def test_the_kind_of_a_new_agent_can_be_said_by_each_of_its_names(name):
    asked = msgspec.convert({"name": "an agent", name: "acp"}, AddAgent)
    assert asked.names_kind


def test_a_new_agent_without_a_kind_says_none():
    assert not msgspec.convert({"name": "an agent"}, AddAgent).names_kind
