"""Each request of the gateway, called through a client's connection (SES-11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from kit.gateway_link import AnsweredError, Link, open_linked
from kit.legacy_threads import AT, NEWER, database, put
from kit.rehearsal import Probe, Stage, open_stage
from kit.skills import package

from greenroom.actors.providers import Call, Halt, Say
from greenroom.protocol import ActionBlock, Budget, MessagesChanged, StatusChanged
from greenroom.protocol.gateway import METHODS, EventNotice
from greenroom.storage import Piece

DONE = [Say("done"), Halt()]
WRITE = [Call("write", {"path": "a.txt", "content": "x"}, id="c1"), Halt("tool_use")]


@attrs.define(eq=False)
class World:
    """A gateway with one session, a client of it, and a tool that waits."""

    stage: Stage
    link: Link
    tool: Probe
    folder: Path

    @property
    def id(self) -> str:
        return self.stage.session.id

    async def call(self, name: str, /, **params: Any) -> Any:
        """Call a method about the session."""
        return await self.link.call(name, sessionId=self.id, **params)

    async def prompt(self, content: Any = "hello", command: str = "c1") -> Any:
        return await self.call("prompt", content=content, commandId=command)

    async def pause(self) -> Any:
        """Have a turn wait for a permission; returns the interaction."""
        await self.call("session/attach")
        await self.call("queue", content="write", commandId="p1")
        await self.link.until(lambda: any(map(_asks, self.link.events)))
        (waiting,) = (await self.call("interaction/list")).interactions
        return waiting

    async def until_idle(self) -> None:
        """Return when the newest status is idle."""
        await self.link.until(lambda: _states(self.link)[-1] == "idle")

    async def refused(self, name: str, /, **params: Any) -> str:
        with pytest.raises(AnsweredError) as refused:
            await self.link.call(name, **params)
        return str(refused.value.code)


def _asks(notice: EventNotice) -> bool:
    event = notice.event
    return isinstance(event, MessagesChanged) and any(
        isinstance(block, ActionBlock) for block in event.message.blocks
    )


def _states(link: Link) -> list[str]:
    events = (notice.event for notice in link.events)
    return [event.state for event in events if isinstance(event, StatusChanged)]


Case = Callable[[World], Awaitable[None]]
CASES: dict[str, Case] = {}
SCRIPTS: dict[str, list[Any]] = {}


def case(name: str, *script: Any) -> Callable[[Case], Case]:
    """Name the method that a function tries, and what the model says meanwhile."""

    def keep(function: Case) -> Case:
        CASES[f"_greenroom/{name}"] = function
        SCRIPTS[f"_greenroom/{name}"] = list(script) or [DONE] * 4
        return function

    return keep


@pytest.mark.contract("SES-11")
@pytest.mark.parametrize("method", METHODS)
async def test_a_client_connection_has_every_method(method: str, tmp_path: Path):
    gate = trio.Event()
    tool = Probe("probe", gate=gate)
    async with (
        open_stage(
            tmp_path, SCRIPTS[method], tool, builtin=method not in GATED
        ) as stage,
        open_linked(stage.engine) as link,
    ):
        with trio.fail_after(20):
            await CASES[method](World(stage, link, tool, tmp_path))
        # Those of an input that is blocked have nothing to succeed with here.
        blocked = method.endswith(("input/retry", "input/degrade"))
        assert method in link.answered or blocked
        gate.set()


def test_every_case_is_of_a_method():
    assert set(CASES) == set(METHODS)


#### Sessions


@case("session/list")
async def _(world: World) -> None:
    second = (
        await world.link.call("session/create", workspace="/", title="Another one")
    ).session
    page = await world.link.call("session/list", limit=1)
    assert [item.id for item in page.sessions] == [second.id]
    rest = await world.link.call(
        "session/list",
        before={"updatedAt": page.next.updated_at, "id": page.next.id},
    )
    assert [item.id for item in rest.sessions] == [world.id]
    assert rest.next is None
    found = await world.link.call(
        "session/list", agent="default", archived=False, title="another"
    )
    assert [item.settings.title for item in found.sessions] == ["Another one"]
    assert (await world.link.call("session/list", archived=True)).sessions == ()


@case("session/get")
async def _(world: World) -> None:
    item = (await world.call("session/get")).session
    assert (item.id, item.state, item.is_loaded) == (world.id, "idle", True)
    await world.stage.session.close()
    assert not (await world.call("session/get")).session.is_loaded
    assert await world.refused("session/get", sessionId="no") == "session_not_found"


@case("session/create")
async def _(world: World) -> None:
    made = await world.link.call(
        "session/create",
        workspace=str(world.folder),
        agent="default",
        title="New",
        model="other",
        permissionMode="full_access",
        systemPrompt="be brief",
        maxRounds=3,
    )
    settings = made.session.settings
    assert (settings.title, settings.model, settings.max_rounds) == ("New", "other", 3)
    assert settings.permission_mode == "full_access"
    nowhere = str(world.folder / "none")
    assert await world.refused("session/create", workspace=nowhere)


@case("session/attach")
async def _(world: World) -> None:
    begun = await world.call("session/attach")
    assert begun.snapshot.seq == begun.seq
    await world.prompt()
    await world.link.until(
        lambda: any("done" in str(each) for each in world.link.events)
    )
    again = await world.call("session/attach", after=begun.seq)
    assert again.snapshot is None


@case("session/detach")
async def _(world: World) -> None:
    await world.call("session/attach")
    assert world.stage.engine is not None
    await world.call("session/detach")
    told = len(world.link.events)
    await world.prompt()
    assert len(world.link.events) == told


@case("session/snapshot")
async def _(world: World) -> None:
    await world.prompt()
    seen = await world.call("session/snapshot")
    assert [message.role for message in seen.snapshot.messages] == ["user", "assistant"]
    assert not seen.older


@case("session/messages")
async def _(world: World) -> None:
    for number in range(3):
        await world.prompt(f"number {number}", f"c{number}")
    page = await world.call("session/messages", limit=2)
    assert [message.order_seq for message in page.messages] == [5, 6]
    assert page.next == 5
    rest = await world.call("session/messages", before=page.next)
    assert [message.order_seq for message in rest.messages] == [1, 2, 3, 4]
    assert rest.next is None


@case("session/message")
async def _(world: World) -> None:
    message = (await world.prompt()).message_id
    one = await world.call("session/message", messageId=message)
    assert (one.message.id, one.total, one.next) == (message, 1, None)
    code = await world.refused("session/message", sessionId=world.id, messageId="no")
    assert code == "message_not_found"


@case("session/block")
async def _(world: World) -> None:
    message = (await world.prompt()).message_id
    one = await world.call("session/message", messageId=message)
    block = one.message.blocks[0].id
    where = {"messageId": message, "blockId": block}
    part = await world.call("session/block", **where, offset=1, limit=2)
    assert (part.text, part.total) == ("on", 4)
    for wrong in ({"field": "nothing"}, {"blockId": "no"}, {"field": "status"}):
        asked: dict[str, Any] = {"sessionId": world.id, **where, **wrong}
        assert await world.refused("session/block", **asked) == "message_not_found"


@case("session/search")
async def _(world: World) -> None:
    await world.prompt("a needle in it")
    # What indexes between writes has a thread of its own, which this engine lacks.
    writer: Any = world.stage.engine._world.writer
    await writer.submit(Piece(lambda store: store.index_pending()))
    found = await world.call("session/search", query="needle")
    assert [hit.role for hit in found.hits] == ["user"]
    assert "needle" in found.hits[0].snippet
    nowhere = await world.link.call("session/search", query="needle", sessionId="none")
    assert nowhere.hits == ()


@case("session/settings")
async def _(world: World) -> None:
    settings = (await world.call("session/settings")).settings
    assert settings == world.stage.session.settings


@case("session/configure")
async def _(world: World) -> None:
    changes = {"title": "Named", "permissionMode": "full_access", "temperature": 0.5}
    made = (await world.call("session/configure", changes=changes)).settings
    assert (made.title, made.temperature) == ("Named", 0.5)
    limit = {"turnBudget": {"tokens": 10}}
    made = (await world.call("session/configure", changes=limit)).settings
    assert made.turn_budget == Budget(tokens=10)
    unset = {"turnBudget": None}
    made = (await world.call("session/configure", changes=unset)).settings
    assert made.turn_budget is None
    for changes, code in (
        ({"permission_mode": "default"}, "unknown_setting"),
        ({"permissionMode": "all"}, "wrong_setting"),
        ({"agentId": "other"}, "unknown_setting"),
    ):
        asked: dict[str, Any] = {"sessionId": world.id, "changes": changes}
        assert await world.refused("session/configure", **asked) == code


@case("session/fork")
async def _(world: World) -> None:
    first = (await world.prompt("one", "c1")).message_id
    await world.prompt("two", "c2")
    made = (await world.call("session/fork", through=first)).session
    assert made.id != world.id
    page = await world.link.call("session/messages", sessionId=made.id)
    assert len(page.messages) == 2
    answer = page.messages[1].id
    again: dict[str, Any] = {"sessionId": made.id, "through": answer}
    cut = (await world.link.call("session/fork", **again, rounds=1)).session
    page = await world.link.call("session/messages", sessionId=cut.id)
    assert len(page.messages) == 2
    assert await world.refused("session/fork", **again, rounds=2) == "round_not_found"
    unnamed = await world.refused("session/fork", sessionId=made.id, rounds=1)
    assert unnamed == "round_not_found"
    with pytest.raises(AnsweredError, match="are wrong"):
        await world.link.call("session/fork", **again, rounds=0)


@case("session/archive")
async def _(world: World) -> None:
    await world.prompt()
    item = (await world.call("session/archive", archived=True)).session
    assert item.archived_at is not None
    listed = await world.link.call("session/list", archived=True)
    assert [each.id for each in listed.sessions] == [world.id]
    item = (await world.call("session/archive", archived=False)).session
    assert item.archived_at is None


async def _other_agent(world: World) -> str:
    made = await world.link.call("agent/add", name="Other")
    return str(made.agent.id)


@case("session/move")
async def _(world: World) -> None:
    other = await _other_agent(world)
    assert (await world.call("session/move", agent=other)).settings.agent_id == other


@case("session/assess_move")
async def _(world: World) -> None:
    await world.prompt()
    impact = await world.link.call("session/assess_move", agent="default")
    assert (impact.moved, impact.deleted, impact.blocked) == (1, 0, 0)
    assert [sample.session_id for sample in impact.samples] == [world.id]


@case("session/move_all")
async def _(world: World) -> None:
    await world.prompt()
    other = await _other_agent(world)
    done = await world.link.call("session/move_all", agent="default", target=other)
    assert (done.moved, done.deleted) == (1, 0)


@case("session/delete")
async def _(world: World) -> None:
    await world.call("session/attach")
    await world.call("session/delete")
    listed = await world.link.call("session/list")
    assert listed.sessions == ()
    ended = await world.link.until(lambda: world.link.others)
    assert ended[0]["params"]["reason"] == "deleted"


@case("session/rewind")
async def _(world: World) -> None:
    first = (await world.prompt("one", "c1")).message_id
    await world.prompt("two", "c2")
    would = await world.call("session/rewind", through=first, dryRun=True)
    assert (would.count, would.done) == (2, False)
    done = await world.call("session/rewind", through=first, files=True)
    assert (done.through, len(done.messages), done.done) == (first, 2, True)
    assert len((await world.call("session/messages")).messages) == 2


@case("session/clear")
async def _(world: World) -> None:
    await world.prompt()
    await world.call("session/clear")
    assert (await world.call("session/messages")).messages == ()


@case("session/compact", *[DONE] * 3, [Say("a summary"), Halt()])
async def _(world: World) -> None:
    nothing = await world.call("session/compact", focus="numbers")
    assert (nothing.outcome, nothing.why != "") == ("unchanged", True)


@case("session/undo_compaction")
async def _(world: World) -> None:
    assert not (await world.call("session/undo_compaction")).undone


#### Turns


@case("prompt")
async def _(world: World) -> None:
    ended = await world.prompt([{"type": "text", "text": "hello"}])
    assert (ended.outcome, ended.stop_reason, ended.text) == (
        "completed",
        "complete",
        "done",
    )
    again = await world.prompt([{"type": "text", "text": "hello"}])
    assert again.message_id == ended.message_id, "the same command is one turn"
    assert len((await world.call("session/messages")).messages) == 2
    asked: dict[str, Any] = {"sessionId": world.id, "commandId": "c1"}
    assert await world.refused("prompt", **asked, content="x") == "conflicting_command"
    assert await world.refused(
        "prompt", sessionId=world.id, commandId="e", content=""
    ) == ("empty_message")


@case("queue", [Call("probe", {}, id="c1"), Halt("tool_use")], DONE, DONE)
async def _(world: World) -> None:
    taken = await _run(world)
    second = await world.call("queue", content="later", commandId="q2")
    assert (second.delivery, second.input.parts[0].text) == ("waiting", "later")
    assert second.input_id == "q2"
    assert taken.input_id == "q1"


async def _run(world: World) -> Any:
    """Have a turn run whose tool waits."""
    await world.call("session/configure", changes={"permissionMode": "full_access"})
    taken = await world.call("queue", content="first", commandId="q1")
    await world.tool.reached.wait()
    return taken


GATED = {
    f"_greenroom/{name}"
    for name in (
        "queue",
        "steer",
        "cancel",
        "input/list",
        "input/edit",
        "input/move",
        "input/delete",
        "input/promote",
        "tree",
    )
}
RUNNING = ([Call("probe", {}, id="c1"), Halt("tool_use")], DONE, DONE, DONE)


@case("steer", *RUNNING)
async def _(world: World) -> None:
    await _run(world)
    said = await world.call("steer", content="faster", commandId="s1")
    assert said.delivery in ("waiting", "in_flight")
    code = await world.refused(
        "steer",
        sessionId=world.id,
        content="x",
        commandId="s2",
        expectedTurn="another",
    )
    assert code == "turn_changed"


@case("cancel", *RUNNING)
async def _(world: World) -> None:
    await _run(world)
    await world.call("cancel")
    page = await world.call("session/messages")
    assert page.messages[-1].metadata.run_outcome == "aborted"
    assert await world.refused("cancel", sessionId="none") == "session_not_found"


#### What waits


async def _two_wait(world: World) -> None:
    await _run(world)
    await world.call("queue", content="a", commandId="a")
    await world.call("queue", content="b", commandId="b")


def _ids(listed: Any) -> list[str]:
    # The input of the turn that runs is there until that is over.
    return [row.id for row in listed.inputs if row.state == "pending"]


@case("input/list", *RUNNING)
async def _(world: World) -> None:
    await _two_wait(world)
    assert _ids(await world.call("input/list")) == ["a", "b"]
    assert await world.refused("input/list", sessionId="none") == "session_not_found"


@case("input/edit", *RUNNING)
async def _(world: World) -> None:
    await _two_wait(world)
    rows = await world.call("input/edit", inputId="a", content="changed")
    assert [row.parts[0].text for row in rows.inputs] == ["first", "changed", "b"]
    asked: dict[str, Any] = {"sessionId": world.id, "inputId": "no", "content": "x"}
    assert await world.refused("input/edit", **asked) == "unknown_input"


@case("input/move", *RUNNING)
async def _(world: World) -> None:
    await _two_wait(world)
    assert _ids(await world.call("input/move", inputId="b", to=1)) == ["b", "a"]


@case("input/delete", *RUNNING)
async def _(world: World) -> None:
    await _two_wait(world)
    assert _ids(await world.call("input/delete", inputId="a")) == ["b"]


@case("input/promote", *RUNNING)
async def _(world: World) -> None:
    await _two_wait(world)
    rows = await world.call("input/promote", inputId="b")
    assert {row.mode for row in rows.inputs} == {"steer", "queue"}


@case("input/retry")
async def _(world: World) -> None:
    asked: dict[str, Any] = {"sessionId": world.id, "inputId": "no"}
    assert await world.refused("input/retry", **asked) == "unknown_input"


@case("input/degrade")
async def _(world: World) -> None:
    asked: dict[str, Any] = {"sessionId": world.id, "inputId": "no"}
    assert await world.refused("input/degrade", **asked) == "unknown_input"


@case("input/release")
async def _(world: World) -> None:
    assert (await world.call("input/release")).inputs == ()


@case("interaction/list", WRITE, DONE)
async def _(world: World) -> None:
    waiting = await world.pause()
    assert waiting.block.status == "pending"
    assert waiting.tool.name == "write"


@case("interaction/answer", WRITE, DONE)
async def _(world: World) -> None:
    waiting = await world.pause()
    asked: dict[str, Any] = {
        "sessionId": world.id,
        "interactionId": waiting.block.id,
        "answer": {"type": "grant"},
    }
    await world.link.call("interaction/answer", **asked)
    assert await world.refused("interaction/answer", **asked) == "already_answered"
    await world.until_idle()
    assert (world.folder / "workspace/a.txt").read_text() == "x"


#### Agents and Skills


@case("agent/list")
async def _(world: World) -> None:
    other = await _other_agent(world)
    listed = await world.link.call("agent/list")
    assert [agent.id for agent in listed.agents] == ["default", other]
    rest = await world.link.call("agent/list", after="default")
    assert [agent.id for agent in rest.agents] == [other]


@case("agent/get")
async def _(world: World) -> None:
    agent = (await world.link.call("agent/get", agentId="default")).agent
    assert (agent.kind, agent.protected) == ("native", True)
    assert await world.refused("agent/get", agentId="no") == "AGENT_NOT_FOUND"


@case("agent/add")
async def _(world: World) -> None:
    made = await world.link.call(
        "agent/add", name="Mine", kind="native", config={"systemPrompt": "be brief"}
    )
    assert made.agent.config["systemPrompt"] == "be brief"
    other = await world.link.call("agent/add", name="Theirs", command="/bin/cat")
    assert (other.agent.kind, other.agent.agent_type) == ("acp", "acp")
    old = await world.link.call("agent/add", name="Old", type="deepchat")
    assert old.agent.kind == "native"
    for wrong in (
        {"kind": "native", "command": "/bin/cat"},
        {"kind": "acp", "command": "/bin/cat", "config": {}},
        {"kind": "native", "type": "acp"},
    ):
        assert await world.refused("agent/add", name="x", **wrong)


@case("agent/set")
async def _(world: World) -> None:
    other = await _other_agent(world)
    made = await world.link.call(
        "agent/set",
        agentId=other,
        name="Renamed",
        enabled=False,
        config={"systemPrompt": "x"},
    )
    assert (made.agent.name, made.agent.enabled) == ("Renamed", False)
    assert made.agent.config["systemPrompt"] == "x"


@case("agent/reset")
async def _(world: World) -> None:
    other = await _other_agent(world)
    config = {"systemPrompt": "x"}
    await world.link.call("agent/set", agentId=other, config=config)
    made = await world.link.call("agent/reset", agentId=other)
    assert "systemPrompt" not in (made.agent.config or {})


@case("agent/remove")
async def _(world: World) -> None:
    other = await _other_agent(world)
    await world.link.call("agent/remove", agentId=other)
    assert await world.refused("agent/get", agentId=other) == "AGENT_NOT_FOUND"
    code = await world.refused("agent/remove", agentId="default")
    assert code == "agent_protected"


@case("skill/list")
async def _(world: World) -> None:
    skills = world.stage.engine.skills
    for name in ("b-skill", "a-skill"):
        await skills.add(package(world.folder / "sources", name))
    await skills.bind("default", "a-skill")
    listed = (await world.link.call("skill/list")).skills
    assert [(s.name, s.agents) for s in listed] == [
        ("a-skill", ("default",)),
        ("b-skill", ()),
    ]
    assert listed[0].description == "About a-skill."
    rest = await world.link.call("skill/list", after="a-skill")
    assert [skill.name for skill in rest.skills] == ["b-skill"]


#### The engine


@case("tree", *RUNNING)
async def _(world: World) -> None:
    await _run(world)
    tree = await world.link.call("tree")
    paths = [actor.path for actor in tree.actors]
    assert f"sessions/{world.id}" in paths
    assert tree.left_out == 0
    assert all(actor.age >= 0 for actor in tree.actors)


@case("metrics")
async def _(world: World) -> None:
    values = (await world.link.call("metrics")).values
    assert values["sessions_loaded"] == 1
    assert values["runs"] == 0


@case("journal", WRITE, DONE, DONE)
async def _(world: World) -> None:
    await world.call("session/configure", changes={"permissionMode": "full_access"})
    await world.prompt("one", "c1")
    await world.prompt("two", "c2")
    page = await world.call("journal")
    kinds = [entry.kind for entry in page.entries]
    one = ["run_started", "request", "attempt", "run_ended"]
    tool = ["dispatch", "outcome", "request", "attempt"]
    assert kinds == [*one[:3], *tool, "run_ended", *one]
    first = page.entries[0].run_id
    of_run = await world.call("journal", runId=first)
    assert {entry.run_id for entry in of_run.entries if entry.kind != "request"} == {
        first
    }
    assert page.next is None
    before = await world.call("journal", before=page.entries[-1].seq)
    assert before.entries == page.entries[:-1]


@case("legacy/import")
async def _(world: World) -> None:
    path = world.folder / "old.db"
    with database(path, NEWER) as db:
        put(db, "new_sessions", id="s", title="Old", created_at=AT, updated_at=AT)
        put(
            db,
            "deepchat_messages",
            id="m",
            session_id="s",
            order_seq=1,
            role="user",
            content={"text": "hello"},
            status="sent",
            created_at=AT,
            updated_at=AT,
        )
    how: dict[str, Any] = {"path": str(path), "workspace": str(world.folder)}
    would = await world.link.call("legacy/import", **how, dryRun=True)
    assert [thread.outcome for thread in would.threads] == ["would be imported"]
    done = await world.link.call("legacy/import", **how)
    assert [(t.title, t.outcome) for t in done.threads] == [("Old", "imported")]
    again = await world.link.call("legacy/import", **how)
    assert [thread.outcome for thread in again.threads] == ["already here"]
    listed = await world.link.call("session/list", title="Old")
    assert len(listed.sessions) == 1
