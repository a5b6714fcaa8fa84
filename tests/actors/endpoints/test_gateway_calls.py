"""How requests of a client are judged, bounded and outlived (SES-08, SES-21)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.gateway_link import open_link
from kit.rehearsal import Probe, Stage, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.endpoints._acp_turn import RefusedError
from greenroom.actors.endpoints.gateway._calls import HANDLERS, Calls
from greenroom.actors.endpoints.gateway._calls_client import (
    Clients,
    ConnectionEndedError,
    DeadlineError,
    ForbiddenError,
    StoppedError,
    TooManySubmissionsError,
)
from greenroom.actors.endpoints.gateway._ports import EnginePort
from greenroom.actors.providers import Call, Halt, Say
from greenroom.actors.sessions import SessionNotFoundError, TurnResult
from greenroom.engine import Engine
from greenroom.gateway import open_gateway
from greenroom.protocol import (
    GreenroomError,
    MessageMetadata,
    MessageRecord,
    SessionId,
    StorageError,
)
from greenroom.protocol.gateway import (
    MAX_SUBMISSIONS,
    METHODS,
    SCOPES,
    Attached,
    Method,
    PromptResult,
    Scope,
)
from greenroom.protocol.jsonrpc import ErrorCode
from greenroom.storage import open_store

DONE = [Say("done"), Halt()]
AT_ONCE = {f"_greenroom/{name}" for name in ("tree", "metrics", "session/detach")}
"""What waits for nobody."""

VALUES: dict[str, Any] = {
    "content": "x",
    "changes": {},
    "answer": {"type": "grant"},
    "archived": True,
    "to": 1,
    "dryRun": True,
}


def params_of(method: Method) -> msgspec.Raw:
    """The least that a method takes."""
    fields = msgspec.structs.fields(method.params)
    names = [
        field.encode_name
        for field in fields
        if field.required or field.encode_name == "dryRun"
    ]
    given = {name: VALUES.get(name, "x") for name in names}
    return msgspec.Raw(msgspec.json.encode(given))


@attrs.define(eq=False)
class StalledEngine:
    """An engine of which nothing comes back until it is let go."""

    gate: trio.Event = attrs.field(factory=trio.Event)
    entered: list[str] = attrs.field(factory=list)
    value: Any = None
    error: Exception | None = None

    def tree(self) -> tuple[()]:
        return ()

    def metrics(self) -> dict[str, float]:
        return {"runs": 0.0}

    def status(self, session_id: str) -> None:
        return None

    def session(self, session_id: str) -> StalledEngine:
        return self

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[Any]:
        await self._wait("follow")
        yield self

    def __getattr__(self, name: str) -> Any:
        if name in ("agents", "skills", "bindings", "imports"):
            return self

        async def wait(*args: object, **named: object) -> Any:
            return await self._wait(name)

        return self._note if name.endswith("_soon") else wait

    def _note(self, *args: object) -> None:
        self.entered.append("soon")

    async def _wait(self, name: str) -> Any:
        self.entered.append(name)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.value


@attrs.define(eq=False)
class Follows:
    """A relay that notes what it is asked."""

    attached: list[tuple[str, int | None]] = attrs.field(factory=list)
    detached: list[str] = attrs.field(factory=list)
    error: BaseException | None = None

    async def attach(
        self, session_id: SessionId, after: int | None, incarnation: str | None
    ) -> Attached:
        await trio.lowlevel.checkpoint()
        self.attached.append((session_id, after))
        if self.error is not None:
            raise self.error
        return Attached(seq=after or 0)

    def detach(self, session_id: SessionId) -> None:
        self.detached.append(session_id)


@attrs.define(eq=False)
class Desk:
    """Clients of an engine, and the gateway's nursery."""

    engine: Any
    nursery: trio.Nursery
    clients: Clients

    def calls(
        self, client: str = "phone", scopes: tuple[Scope, ...] = SCOPES, **how: Any
    ) -> Calls:
        follows = how.pop("follows", None) or Follows()
        return Calls(
            self.engine,
            self.clients.find(client),
            frozenset(scopes),
            follows,
            self.nursery,
            **how,
        )


@asynccontextmanager
async def open_desk(engine: Any = None) -> AsyncIterator[Desk]:
    engine = engine or StalledEngine()
    async with trio.open_nursery() as nursery:
        yield Desk(engine, nursery, Clients(engine))
        nursery.cancel_scope.cancel()


def raw(**params: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(params))


async def ask(calls: Calls, name: str, **params: Any) -> Any:
    return await calls.call(f"_greenroom/{name}", raw(**params))


def prompt(calls: Calls, command: str = "c") -> Any:
    return ask(calls, "prompt", sessionId="s", content="x", commandId=command)


#### Judging


def test_an_engine_is_what_the_gateway_asks_for():
    def takes(engine: EnginePort) -> None: ...

    def gives(engine: Engine) -> None:
        takes(engine)

    assert gives is not None


def test_every_method_has_one_who_does_it():
    own = {"attach", "detach"}
    names = {*HANDLERS, "_greenroom/metrics", *(f"_greenroom/session/{n}" for n in own)}
    assert names == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
async def test_a_method_needs_its_scope(method: str):
    async with open_desk() as desk:
        others: tuple[Scope, ...] = tuple(
            scope for scope in SCOPES if scope != METHODS[method].scope
        )
        with pytest.raises(
            ForbiddenError, match=f"needs the scope '{METHODS[method].scope}'"
        ):
            await desk.calls(scopes=others).call(method, params_of(METHODS[method]))
        assert desk.engine.entered == []


@pytest.mark.parametrize(
    "params",
    [b"", b"[]", b"null", b"7", b'{"sessionId": 7}', b"{}", b'{"sessionId": ""}',
     b'{"sessionId": "s", "more": 1}', b"[" * 100_000,
     b'{"sessionId": "' + b"s" * 201 + b'"}'],
)  # fmt: skip
async def test_wrong_parameters_are_refused_and_nothing_is_done(params: bytes):
    async with open_desk() as desk:
        with pytest.raises(RefusedError, match="the parameters of") as refused:
            await desk.calls().call("_greenroom/session/delete", msgspec.Raw(params))
        assert refused.value.error.code == ErrorCode.INVALID_PARAMS
        assert desk.engine.entered == []
        assert desk.clients.find("phone").submissions == 0


async def test_a_method_that_is_not_there_is_told_so():
    async with open_desk() as desk:
        with pytest.raises(RefusedError, match="there is no method") as refused:
            await desk.calls().call("_greenroom/" + "x" * 500, raw())
        assert refused.value.error.code == ErrorCode.METHOD_NOT_FOUND
        assert len(str(refused.value)) < 200


#### Deadlines and submissions


@pytest.mark.contract("SES-21")
@pytest.mark.parametrize("method", METHODS)
async def test_each_kind_of_request_has_its_deadline(
    method: str, autojump_clock: MockClock
):
    known = METHODS[method]
    want = {"lookup": 5, "list": 15, "send": 1_800, "stop": 5, "interaction": 1_800}
    async with open_desk() as desk:
        calls = desk.calls()
        if method in AT_ONCE:
            await calls.call(method, params_of(known))
            assert trio.current_time() == 0
            return
        with pytest.raises(DeadlineError, match=f"{known.name} took longer than"):
            await calls.call(method, params_of(known))
        assert trio.current_time() == want[known.deadline]
        assert desk.engine.entered, "it was begun"
        await wait_all_tasks_blocked()
        # A turn goes on; everything else is given up.
        goes_on = method == "_greenroom/prompt"
        assert calls.client.submissions == int(goes_on)


@pytest.mark.contract("SES-21")
async def test_a_client_has_32_submissions_and_others_are_unaffected(
    autojump_clock: MockClock,
):
    async with open_desk() as desk:
        phone, again, laptop = desk.calls(), desk.calls(), desk.calls("laptop")
        for number in range(MAX_SUBMISSIONS):
            # Over both of its connections.
            which = phone if number % 2 else again
            desk.nursery.start_soon(prompt, which, str(number))
        await wait_all_tasks_blocked()
        assert len(desk.engine.entered) == MAX_SUBMISSIONS == 32
        for name in ("prompt", "queue", "steer", "session/create"):
            method = METHODS[f"_greenroom/{name}"]
            with pytest.raises(TooManySubmissionsError, match="32 submissions open"):
                await phone.call(method.name, params_of(method))
        assert len(desk.engine.entered) == 32
        # What is no submission goes on, and so does everybody else.
        for calls, name in (
            (again, "session/settings"),
            (again, "cancel"),
            (again, "interaction/answer"),
            (laptop, "prompt"),
        ):
            method = METHODS[f"_greenroom/{name}"]
            desk.nursery.start_soon(calls.call, method.name, params_of(method))
        await wait_all_tasks_blocked()
        assert len(desk.engine.entered) == 36
        assert trio.current_time() == 0


async def test_a_submission_ends_with_its_work_and_makes_room():
    record = MessageRecord(
        id="m",  # type: ignore[arg-type]
        order_seq=1,
        role="assistant",
        status="sent",
        metadata=MessageMetadata(run_outcome="completed", run_stop_reason="complete"),
        created_at=0.0,
        updated_at=0.0,
    )

    async with open_desk() as desk:
        desk.engine.value = TurnResult(record)
        calls = desk.calls()
        for number in range(MAX_SUBMISSIONS):
            desk.nursery.start_soon(prompt, calls, str(number))
        await wait_all_tasks_blocked()
        desk.engine.gate.set()
        await wait_all_tasks_blocked()
        assert calls.client.submissions == 0
        ended = await prompt(calls)
        assert ended == PromptResult(
            message_id=record.id, outcome="completed", stop_reason="complete", text=""
        )


async def test_a_client_that_comes_back_has_not_more_room():
    async with open_desk() as desk:
        async with trio.open_nursery() as connection:
            calls = desk.calls()
            for number in range(MAX_SUBMISSIONS):
                connection.start_soon(prompt, calls, str(number))
            await wait_all_tasks_blocked()
            connection.cancel_scope.cancel()
        await calls.close()
        del calls
        with pytest.raises(TooManySubmissionsError):
            await prompt(desk.calls())
        # One that has nothing open is forgotten.
        assert desk.clients.find("tablet").submissions == 0
        assert "tablet" not in desk.clients._clients


async def test_what_was_begun_goes_on_without_who_asked():
    async with open_desk() as desk:
        calls = desk.calls()
        for name in ("session/clear", "session/delete", "interaction/answer"):
            method = METHODS[f"_greenroom/{name}"]
            with trio.CancelScope() as leaving:
                leaving.cancel()
                await calls.call(method.name, params_of(method))
        await wait_all_tasks_blocked()
        assert desk.engine.entered == ["clear", "delete_session", "answer"]
        assert calls.client.submissions == 2
        desk.engine.gate.set()
        await wait_all_tasks_blocked()
        assert calls.client.submissions == 0


async def test_a_look_ends_with_who_asked():
    async with open_desk() as desk:
        with trio.CancelScope() as leaving:
            desk.nursery.start_soon(_cancel_when_blocked, leaving)
            await ask(desk.calls(), "session/get", sessionId="s")
        assert leaving.cancelled_caught
        assert desk.engine.entered == ["read"]


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_a_failure_is_who_asked_s_and_ends_nothing_else(
    caplog: pytest.LogCaptureFixture,
):
    async with open_desk() as desk:
        calls = desk.calls()
        desk.engine.gate.set()
        desk.engine.error = SessionNotFoundError("s")
        with pytest.raises(SessionNotFoundError):
            await ask(calls, "session/clear", sessionId="s")
        assert not caplog.records
        desk.engine.error = ZeroDivisionError("a bug")
        with pytest.raises(ZeroDivisionError):
            await ask(calls, "session/clear", sessionId="s")
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert calls.client.submissions == 0
        assert not desk.nursery.cancel_scope.cancel_called


async def test_who_waits_is_told_that_the_gateway_stops():
    ended: list[type[BaseException]] = []

    async def wait(calls: Calls) -> None:
        try:
            await prompt(calls)
        except GreenroomError as exc:
            ended.append(type(exc))

    async with trio.open_nursery() as waiting, open_desk() as desk:
        waiting.start_soon(wait, desk.calls())
        await wait_all_tasks_blocked()
    assert ended == [StoppedError]


async def test_what_the_gateway_counts_is_among_the_metrics():
    async with open_desk() as desk:
        calls = desk.calls(counted=lambda: {"gateway_connections": 2.0})
        told = await ask(calls, "metrics")
        assert told.values == {"runs": 0.0, "gateway_connections": 2.0}


#### Bindings


def rows(engine: Engine, **of: str) -> Any:
    return engine.read(lambda reader: reader.bindings(**of))


async def bound(engine: Engine) -> list[tuple[str, str]]:
    return [(row.client_id, row.session_id) for row in await rows(engine)]


@asynccontextmanager
async def open_bound(tmp_path: Path) -> AsyncIterator[tuple[Stage, Desk]]:
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        open_desk(stage.engine) as desk,
    ):
        yield stage, desk


@pytest.mark.contract("SES-08")
async def test_a_client_that_drops_out_of_a_run_loses_its_binding_and_nothing_else(
    tmp_path,
):
    gate = trio.Event()
    tool = Probe("probe", gate=gate)
    script = replies([Call("probe", {}, id="c1"), Halt("tool_use")], DONE)
    async with (
        open_stage(tmp_path, script, tool, permission_mode="full_access") as stage,
        open_gateway(stage.engine, port=0) as gateway,
    ):
        url = f"ws://127.0.0.1:{gateway.port}/acp"
        other = await stage.engine.create_session(workspace=tmp_path)
        async with open_link(url) as laptop:
            await laptop.call("authenticate", clientId="laptop")
            await laptop.call("session/attach", sessionId=stage.session.id)
            async with open_link(url) as phone:
                await phone.call("authenticate", clientId="phone")
                for session in (stage.session, other):
                    await phone.call("session/attach", sessionId=session.id)
                await phone.call("session/detach", sessionId=other.id)
                await phone.send(
                    "prompt", sessionId=stage.session.id, content="x", commandId="c"
                )
                await tool.reached.wait()
                before = await bound(stage.engine)
                assert before == [
                    ("laptop", stage.session.id),
                    ("phone", stage.session.id),
                ]
                # As a phone does: no word, the connection is simply gone.
                await phone.socket._stream.aclose()
            while len(await bound(stage.engine)) == 2:
                await trio.lowlevel.checkpoint()
            assert await bound(stage.engine) == before[:1], "exactly one row"
            gate.set()
            await laptop.until(lambda: "done" in str(laptop.events))
            ended = await laptop.call(
                "prompt", sessionId=stage.session.id, content="x", commandId="c"
            )
            assert (ended.outcome, ended.text) == ("completed", "done")
        kinds = [type(record).__name__ for record in stage.journal()]
        assert kinds.count("RunStarted") == kinds.count("RunTerminal") == 1


async def test_a_client_is_bound_as_long_as_one_of_its_connections_is(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        open_desk(stage.engine) as d,
    ):
        first, second = d.calls(), d.calls()
        assert d.clients.find("phone").connections == 2
        for calls in (first, first, second):
            await ask(calls, "session/attach", sessionId=stage.session.id)
        await first.close()
        await first.close()
        assert d.clients.find("phone").connections == 1
        assert await bound(stage.engine) == [("phone", stage.session.id)]
        await ask(second, "session/detach", sessionId=stage.session.id)
        await ask(second, "session/detach", sessionId=stage.session.id)
        assert await bound(stage.engine) == []
        await second.close()


async def test_an_attach_that_fails_leaves_no_binding(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        open_desk(stage.engine) as d,
    ):
        follows = Follows(error=StorageError("torn"))
        calls = d.calls(follows=follows)
        with pytest.raises(StorageError):
            await ask(calls, "session/attach", sessionId=stage.session.id)
        assert follows.detached == [stage.session.id]
        assert await bound(stage.engine) == []
        with pytest.raises(SessionNotFoundError):
            await ask(calls, "session/attach", sessionId="none")
        assert await bound(stage.engine) == []
        follows.error = None
        await ask(calls, "session/attach", sessionId=stage.session.id, after=3)
        assert follows.attached[-1] == (stage.session.id, 3)
        assert await bound(stage.engine) == [("phone", stage.session.id)]


async def test_an_attach_that_is_cancelled_leaves_no_binding(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        open_desk(stage.engine) as d,
    ):
        for passes in range(12):
            calls = d.calls()
            with trio.CancelScope() as leaving:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_after, leaving, passes)
                    await ask(calls, "session/attach", sessionId=stage.session.id)
                    # It came through before: the connection ends.
                    leaving.cancel()
            with trio.CancelScope(shield=True):
                await calls.close()
            assert await bound(stage.engine) == [], passes
            assert not d.clients.find("phone")._bound, passes


async def _cancel_after(scope: trio.CancelScope, passes: int) -> None:
    for _ in range(passes):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_connection_that_was_closed_attaches_to_nothing(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        open_desk(stage.engine) as d,
    ):
        calls = d.calls()
        await calls.close()
        with pytest.raises(ConnectionEndedError):
            await ask(calls, "session/attach", sessionId=stage.session.id)
        assert await bound(stage.engine) == []


@pytest.mark.contract("SES-08")
async def test_a_start_forgets_the_bindings_of_members_that_are_dead(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        session_id = stage.session.id
        await stage.engine.bindings.bind("phone", session_id)
        assert await bound(stage.engine) == [("phone", session_id)]
    # The engine left without a word of the phone's; then one is killed.
    store = open_store(tmp_path / "state")
    member = store.join("dead", "", 1e9, now=0.0)
    store.bind(member, "laptop", SessionId(session_id), now=0.0)
    store.close()
    async with open_stage(tmp_path, replies(DONE), session_id=session_id) as stage:
        assert await bound(stage.engine) == []


async def test_an_attach_that_is_overtaken_by_the_end_leaves_no_binding(tmp_path):
    async with open_bound(tmp_path) as (stage, d):
        for passes in range(8):
            follows = Follows()
            calls = d.calls(follows=follows)
            asked: dict[str, Any] = {"sessionId": stage.session.id}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_refused_or_not, calls, asked)
                for _ in range(passes):
                    await trio.lowlevel.checkpoint()
                await calls.close()
            assert await bound(stage.engine) == [], passes
            assert not d.clients.find("phone")._bound, passes
            assert len(follows.detached) >= len(follows.attached)


async def _refused_or_not(calls: Calls, asked: dict[str, Any]) -> None:
    with suppress(ConnectionEndedError):
        await ask(calls, "session/attach", **asked)


async def test_what_is_bound_goes_with_the_session(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.engine.bindings.bind("phone", stage.session.id)
        await stage.engine.delete_session(stage.session.id)
        assert await bound(stage.engine) == []
