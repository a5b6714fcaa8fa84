"""What a SKILL.md may say, and how bindings change."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    MAX_SKILL_TEXT,
    MAX_SKILLS,
    SkillError,
    SkillRecord,
    SkillState,
    catalogue_of,
    effective_skills,
    holders,
    is_skill_name,
    parse_skill,
    with_binding,
    with_only_agents,
    with_skill,
    without_skill,
)

HEAD = "---\nname: pdf\ndescription: About it.\n---\n"


def managed(*names: str) -> SkillState:
    state = SkillState()
    for name in names:
        state = with_skill(state, SkillRecord(name=name, path=name, source="s"))
    return state


@pytest.mark.parametrize(
    ("text", "description", "instructions"),
    [
        (HEAD + "\nDo it.\n", "About it.", "Do it."),
        (HEAD.replace("\n", "\r\n") + "Do it.", "About it.", "Do it."),
        ("\ufeff" + HEAD, "About it.", ""),
        (HEAD.replace("About it.", '"a: b"'), "a: b", ""),
        (HEAD.replace("About it.", ">-\n  one\n  two"), "one two", ""),
        (
            HEAD.replace("name:", "license: MIT\nmeta:\n  name: x\nname:"),
            "About it.",
            "",
        ),
        (HEAD + "---\nDo it.\n---", "About it.", "---\nDo it.\n---"),
    ],
)
def test_front_matter_is_read_as_the_field_writes_it(
    text: str, description: str, instructions: str
) -> None:
    found = parse_skill(text)
    assert (found.name, found.description, found.instructions) == (
        "pdf",
        description,
        instructions,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no front matter",
        "---\nname: pdf\ndescription: d\n",
        "---\nname: pdf\n---\n",
        "---\ndescription: d\n---\n",
        "---\nname: ../up\ndescription: d\n---\n",
        "---\nname: Pdf\ndescription: d\n---\n",
        f"---\nname: pdf\ndescription: {'d' * 1_025}\n---\n",
        HEAD + "x" * MAX_SKILL_TEXT,
    ],
)
def test_what_is_no_skill_is_refused(text: str) -> None:
    with pytest.raises(SkillError) as refused:
        parse_skill(text)
    assert refused.value.code == "invalid_skill"


@given(st.text(max_size=300))
def test_any_text_is_a_skill_or_a_typed_error(text: str) -> None:
    for candidate in (text, f"---\n{text}\n---\n", HEAD + text):
        try:
            found = parse_skill(candidate)
        except SkillError:
            continue
        assert is_skill_name(found.name)
        assert not {"\x00", "/"} & set(found.name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a--b", "A", "a/b", "..", "a" * 65])
def test_a_name_is_plain_words(name: str) -> None:
    assert not is_skill_name(name)


@pytest.mark.contract("SKL-01")
def test_a_missing_binding_is_a_disabled_one() -> None:
    state = with_binding(managed("a", "b"), "x", "a", assigned=True)
    state = with_binding(state, "x", "b", extension={"k": 1})
    assert catalogue_of(state, {"a", "b"}, "x", None) == {"a"}
    assert catalogue_of(state, {"a", "b"}, "y", None) == set()
    assert holders(state, "a") == ("x",)
    assert holders(state, "b") == ()


@pytest.mark.contract("SKL-02")
def test_a_catalogue_is_what_is_there_managed_assigned_and_allowed() -> None:
    state = managed("a", "b", "c")
    for name in ("a", "b", "c"):
        state = with_binding(state, "x", name, assigned=True)
    assert catalogue_of(state, {"a", "b", "d"}, "x", None) == {"a", "b"}
    assert catalogue_of(state, {"a", "b"}, "x", ("b", "d")) == {"b"}
    assert catalogue_of(state, {"a", "b"}, "x", ()) == set()
    assert effective_skills(["b", "z", "a"], {"a", "b"}) == ("a", "b")


def test_a_skill_goes_with_its_bindings_and_an_agent_with_its_own() -> None:
    state = managed("a", "b")
    for agent, name in (("x", "a"), ("x", "b"), ("y", "a")):
        state = with_binding(state, agent, name, assigned=True)
    gone = without_skill(state, "a")
    assert (set(gone.skills), set(gone.agents)) == ({"b"}, {"x"})
    assert set(gone.agents["x"].bindings) == {"b"}
    assert set(with_only_agents(state, {"y", "z"}).agents) == {"y"}
    with pytest.raises(SkillError, match="no Skill 'c'"):
        with_binding(state, "x", "c", assigned=True)


def test_there_are_so_many_skills_and_no_more() -> None:
    state = managed(*[f"s{n}" for n in range(MAX_SKILLS)])
    with pytest.raises(SkillError) as refused:
        with_skill(state, SkillRecord(name="more", path="more", source="s"))
    assert refused.value.code == "too_many_skills"
    assert with_skill(state, SkillRecord(name="s1", path="s1", source="t"))
