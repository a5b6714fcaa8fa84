"""What instructions are made of: in one order, equal parts making equal bytes."""

from __future__ import annotations

from itertools import permutations

import attrs
import pytest

from greenroom.protocol import PromptParts, SkillNote, assemble_prompt

USED = SkillNote("b", "About\n b.", "/skills/b", "Do b.")
OFFERED = SkillNote("a", "About a.", "/skills/a")
ALL = PromptParts(
    "Be brief.", "Use tabs.\n", (USED, OFFERED), ("Call tools.",), "Have others work."
)


@pytest.mark.contract("SKL-09")
def test_the_parts_stand_in_one_order_whatever_order_they_come_in() -> None:
    text = assemble_prompt(ALL)
    parts = ["Be brief.", "AGENTS.md", "Use tabs.", "- a: About a.", "use: b", "Do b."]
    places = [text.index(part) for part in [*parts, "# Tools\n\nCall tools."]]
    assert places == sorted(places)
    assert "/skills/b" in text
    assert "/skills/a" not in text
    every = (USED, OFFERED, SkillNote("c", "About c.", "/skills/c"))
    every += (SkillNote("d", "About d.", "/skills/d", "Do d."),)
    orders = permutations(every)
    told = {assemble_prompt(attrs.evolve(ALL, skills=order)) for order in orders}
    assert len(told) == 1


@pytest.mark.contract("SKL-09")
def test_delegation_is_spoken_of_only_to_who_delegates_by_itself() -> None:
    assert "Have others work." not in assemble_prompt(ALL)
    assert "Have others work." in assemble_prompt(attrs.evolve(ALL, proactive=True))


@pytest.mark.parametrize("prompt", ["", "  ", "Be brief.\n"])
def test_without_anything_else_the_agent_s_own_words_are_as_they_are(
    prompt: str,
) -> None:
    assert assemble_prompt(PromptParts(prompt, " \n", (), ("",))) == prompt


def test_what_no_provider_takes_is_not_in_it() -> None:
    parts = PromptParts("a", "b\x00c\ud800")
    assert not {"\x00", "\ud800"} & set(assemble_prompt(parts))
