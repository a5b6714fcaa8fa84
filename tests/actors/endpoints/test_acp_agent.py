"""The agent as a client sees it: every message is held to the published schema."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from kit.acp_client import CANCELLED, NEVER, AcpClient, choose, maker, open_client
from kit.rehearsal import Probe, Stage, open_stage, replies
from trio.testing import (
    lockstep_stream_one_way_pair,
    memory_stream_one_way_pair,
    memory_stream_pair,
    wait_all_tasks_blocked,
)

from greenroom.actors.endpoints import AgentInfo, serve_acp
from greenroom.actors.providers import Call, Fail, Halt, Hang, Say, Think
from greenroom.actors.tools import Question, ToolResult
from greenroom.protocol import ImagePart, QuestionOption, TextPart, UserMessage
from greenroom.protocol.jsonrpc import MAX_MESSAGE_BYTES

DONE = [Say("done"), Halt()]
USE = Halt("tool_use")


@asynccontextmanager
async def connected(tmp_path, script, *tools, builtin=False, **settings):
    """An engine, a client of it, a session, and the workspace."""
    async with (
        open_stage(tmp_path, script, *tools, builtin=builtin) as stage,
        open_client(maker(stage.engine, **settings)) as client,
    ):
        session_id = await client.start(tmp_path / "workspace")
        yield stage, client, session_id


def stop_reason(response: dict[str, Any]) -> str:
    assert "result" in response, response
    return response["result"]["stopReason"]


def error_code(response: dict[str, Any]) -> int:
    assert "error" in response, response
    return response["error"]["code"]


def ends_of_calls(client: AcpClient) -> dict[str, list[str]]:
    """The terminal statuses of every announced call."""
    ends = {update["toolCallId"]: [] for update in client.updates("tool_call")}
    for update in client.updates():
        if update.get("status") in ("completed", "failed"):
            ends[update["toolCallId"]].append(update["status"])
    return ends


def last_message(stage: Stage) -> Any:
    """What the model was told last."""
    return stage.provider.requests[-1].messages[-1]


#### Hands


@pytest.mark.parametrize("offered", [1, 2, 99, 0])
async def test_the_handshake_says_who_and_what(tmp_path, offered):
    async with (
        open_stage(tmp_path, []) as stage,
        open_client(maker(stage.engine)) as client,
    ):
        answer = await client.call("initialize", protocolVersion=offered, info={})
        assert answer["result"] == {
            "protocolVersion": 1,
            "agentCapabilities": {
                "promptCapabilities": {"image": True, "embeddedContext": True}
            },
            "agentInfo": {"name": "greenroom", "version": "1"},
        }


async def test_nothing_is_served_before_the_handshake(tmp_path):
    async with (
        open_stage(tmp_path, []) as stage,
        open_client(maker(stage.engine)) as client,
    ):
        early = await client.call("session/new", cwd="/", mcpServers=[])
        assert error_code(early) == -32600
        await client.notify("session/cancel", sessionId="x")
        wrong = await client.call("initialize", protocolVersion="1")
        assert error_code(wrong) == -32602
        again = await client.call("session/new", cwd="/", mcpServers=[])
        assert error_code(again) == -32600
        assert "result" in await client.call("initialize", protocolVersion=1)
        assert "result" in await client.call("initialize", protocolVersion=1)


async def test_a_new_session_has_an_id_and_modes(tmp_path):
    async with connected(tmp_path, []) as (stage, client, session_id):
        (made,) = (
            m["result"] for m in client.received if "modes" in m.get("result", ())
        )
        assert made["modes"]["currentModeId"] == "default"
        (_, row) = sorted(
            await stage.engine.sessions(), key=lambda row: row.id == session_id
        )
        assert row.settings.workspace == str(tmp_path / "workspace")


@pytest.mark.parametrize(
    "params",
    [
        {"cwd": "relative"},
        {"cwd": "/no/such/folder"},
        {"cwd": "/a\0b"},
        {"cwd": "/" + "x" * 5_000},
        {"cwd": 5},
        {"mcpServers": 5},
        {"mcpServers": [{"name": "x", "command": "/x", "args": [], "env": {}}]},
        {"mcpServers": ...},
        {"additionalDirectories": ["/"]},
    ],
)
async def test_a_session_that_can_t_be_made_is_refused(tmp_path, params):
    async with connected(tmp_path, []) as (_, client, _):
        wanted = {"cwd": str(tmp_path), "mcpServers": []} | params
        wanted = {k: v for k, v in wanted.items() if v is not ...}
        assert error_code(await client.call("session/new", **wanted)) == -32602
        assert await client.new_session(tmp_path)


async def test_servers_of_tools_are_taken_and_said_to_be_ignored(tmp_path, caplog):
    async with connected(tmp_path, []) as (_, client, _):
        named = {"name": "fs", "command": "/bin/fs", "args": [], "env": []}
        made = await client.call("session/new", cwd=str(tmp_path), mcpServers=[named])
        assert "sessionId" in made["result"]
        assert "fs is ignored" in caplog.text


#### A prompt


async def test_a_prompt_is_told_as_it_happens_and_answered_once(tmp_path):
    script = replies([Think("hm"), Say("hello world", chunk=4), Halt()])
    async with connected(tmp_path, script) as (_, client, session_id):
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        await wait_all_tasks_blocked()

        assert client.text() == "hello world"
        assert client.story()[1:] == [
            "session_info_update",
            "agent_thought_chunk",
            "agent_message_chunk",
            "end_turn",
        ]


async def test_every_part_of_a_prompt_reaches_the_model(tmp_path):
    async with connected(tmp_path, replies(DONE)) as (stage, client, session_id):
        prompt = [
            {"type": "text", "text": "look", "annotations": 5},
            {"type": "image", "mimeType": "image/png", "data": "aGk="},
            {"type": "resource_link", "uri": "file:///a.py", "name": "a.py"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "body"}},
        ]
        done = await client.call("session/prompt", sessionId=session_id, prompt=prompt)
        assert stop_reason(done) == "end_turn"
        (request,) = stage.provider.requests
        assert request.messages[-1] == UserMessage(
            (
                TextPart("look"),
                ImagePart("image/png", "aGk="),
                TextPart("[a.py](file:///a.py)"),
                TextPart('<resource uri="file:///b">\nbody\n</resource>'),
            )
        )


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [{"type": "text", "text": "  "}],
        [{"type": "text", "text": "x" * 200_001}],
        [{"type": "audio", "mimeType": "audio/wav", "data": "aGk="}],
        [{"type": "image", "mimeType": "image/png", "data": "?"}],
        [{"type": "nonsense"}],
        "text",
    ],
)
async def test_a_prompt_that_is_none_is_refused_and_the_next_is_not(tmp_path, prompt):
    async with connected(tmp_path, replies(DONE)) as (stage, client, session_id):
        bad = await client.call("session/prompt", sessionId=session_id, prompt=prompt)
        assert error_code(bad) == -32602
        # It has not named the session, either.
        assert {s.settings.title for s in await stage.engine.sessions()} == {"New Chat"}
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


async def test_the_first_prompt_names_the_session(tmp_path):
    async with connected(tmp_path, replies(DONE, DONE)) as (stage, client, session_id):
        await client.prompt(session_id, "  Fix the door\nplease")
        await client.prompt(session_id, "And the window")
        assert client.updates("session_info_update") == [
            {"sessionUpdate": "session_info_update", "title": "Fix the door"}
        ]
        titles = [row.settings.title for row in await stage.engine.sessions()]
        assert sorted(titles) == ["Fix the door", "New Chat"]


async def test_a_file_that_is_written_is_shown_as_a_diff_at_its_place(tmp_path):
    write = Call("write", {"path": "a.txt", "content": "new\n"})
    async with connected(
        tmp_path,
        replies([write, USE], DONE),
        builtin=True,
        permission_mode="full_access",
    ) as (_, client, session_id):
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        path = str(tmp_path / "workspace/a.txt")
        shown = [u for u in client.updates("tool_call_update") if "content" in u]
        assert shown[0]["content"] == [
            {"type": "diff", "path": path, "newText": "new\n"}
        ]
        assert shown[0]["locations"] == [{"path": path}]
        assert shown[0]["kind"] == "edit"
        raw = [u["rawInput"] for u in client.updates() if "rawInput" in u]
        assert raw == [{"path": "a.txt", "content": "new\n"}]
        assert list(ends_of_calls(client).values()) == [["completed"]]


@pytest.mark.contract("PER-08")
async def test_what_came_from_an_editor_has_it_as_its_first_hop(tmp_path):
    async with connected(tmp_path, replies(DONE, DONE)) as (stage, client, session_id):
        for text in ("go", "and on"):
            await client.prompt(session_id, text)
        session = stage.engine.session(session_id)
        said = [m.id for m in await session.messages() if m.role == "user"]
        hops = [await session.hops(message_id) for message_id in said]
        assert [(told[0].hop, told[0].detail) for told in hops] == [
            ("endpoint", "acp")
        ] * 2
        assert [told[0].message_id for told in hops] == said


async def test_a_plan_is_told(tmp_path):
    entries = [{"content": "look", "status": "in_progress", "priority": "high"}]
    plan = Call("update_plan", {"entries": entries})
    async with connected(tmp_path, replies([plan, USE], DONE), builtin=True) as (
        _,
        client,
        session_id,
    ):
        await client.prompt(session_id)
        assert [u["entries"] for u in client.updates("plan")] == [entries]


async def test_output_too_large_for_the_feed_is_made_up_for(tmp_path):
    async def noisy(_, operation):
        await operation.dispatch()
        operation.progress("x" * 5_000_000)
        return ToolResult("quiet")

    probe = Probe(body=noisy)
    script = replies([Say("before"), Call("probe"), USE], [Say(" after"), Halt()])
    async with connected(tmp_path, script, probe) as (_, client, session_id):
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        assert client.text() == "before after"
        assert list(ends_of_calls(client).values()) == [["completed"]]


#### Permissions and questions

ASKING = replies([Call("probe", {"n": 1}), USE], DONE)


def asks(**fields: Any) -> Probe:
    return Probe(permission="probe it", **fields)


async def test_a_permission_is_asked_after_its_call_and_granted(tmp_path):
    probe = asks()
    async with connected(tmp_path, ASKING, probe) as (_, client, session_id):
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        assert probe.calls == [{"n": 1}]
        assert client.story()[2:] == [
            "tool_call pending",
            "tool_call_update",
            "request_permission",
            "tool_call_update in_progress",
            "tool_call_update completed",
            "agent_message_chunk",
            "end_turn",
        ]
        (asked,) = client.asks()
        assert asked["params"]["toolCall"]["title"] == "probe it"
        assert asked["params"]["toolCall"]["rawInput"] == {"n": 1}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda params: choose(params, "reject_once"), "denied this call"),
        (lambda _: {"outcome": {"outcome": "selected", "optionId": "?"}}, "unknown"),
        (lambda _: {"code": -32601, "message": "no such method"}, "no such method"),
        (lambda _: {"outcome": {"outcome": "perhaps"}}, "can't be read"),
        (lambda _: {"outcome": True}, "can't be read"),
        (lambda _: {}, "can't be read"),
    ],
)
async def test_nothing_but_the_offered_yes_grants(tmp_path, answer, told):
    probe = asks()
    async with connected(tmp_path, ASKING, probe) as (stage, client, session_id):
        client.on_permission = answer
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        assert probe.operations == []
        assert list(ends_of_calls(client).values()) == [["failed"]]
        assert told in last_message(stage).text


@pytest.mark.parametrize("answer", [CANCELLED, {"code": -32800, "message": "gone"}])
async def test_a_cancelled_permission_cancels_the_turn(tmp_path, answer):
    probe = asks()
    async with connected(tmp_path, ASKING, probe) as (stage, client, session_id):
        client.on_permission = lambda _: answer
        assert stop_reason(await client.prompt(session_id)) == "cancelled"
        assert probe.operations == []
        assert len(stage.provider.requests) == 1
        assert list(ends_of_calls(client).values()) == [["failed"]]


async def test_permissions_are_asked_one_after_the_other(tmp_path):
    probe = asks()
    calls = [Call("probe", {"n": n}) for n in range(3)]
    async with connected(tmp_path, replies([*calls, USE], DONE), probe) as (
        _,
        client,
        session_id,
    ):
        answers = iter(["allow_once", "reject_once", "allow_once"])
        client.on_permission = lambda params: choose(params, next(answers))
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        assert probe.calls == [{"n": 0}, {"n": 2}]
        assert list(ends_of_calls(client).values()) == [
            ["completed"],
            ["failed"],
            ["completed"],
        ]


def ask_colour(**fields: Any) -> Probe:
    options = (QuestionOption("red", "warm"), QuestionOption("blue", "cool"))
    return Probe(question=Question("Which?", "Colour", options, **fields))


async def test_a_question_with_labels_is_a_choice(tmp_path):
    async with connected(tmp_path, ASKING, ask_colour()) as (stage, client, session_id):
        client.on_permission = lambda params: {
            "outcome": {
                "outcome": "selected",
                "optionId": params["options"][1]["optionId"],
            }
        }
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        assert last_message(stage).text == "blue"
        assert list(ends_of_calls(client).values()) == [["completed"]]


async def test_another_question_is_said_and_answered_by_the_next_prompt(tmp_path):
    async with connected(tmp_path, ASKING, ask_colour(multiple=True)) as (
        stage,
        client,
        session_id,
    ):
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        assert "**Colour**" in client.text()
        assert "- red: warm" in client.text()
        assert not client.asked.is_set()
        assert stop_reason(await client.prompt(session_id, "both")) == "end_turn"
        assert last_message(stage).parts[0].text == "both"


#### Cancelling


async def test_a_cancelled_prompt_says_so_and_the_next_one_works(tmp_path):
    script = replies([Say("I begin"), Hang()], DONE)
    async with connected(tmp_path, script) as (_, client, session_id):
        request = client.prompting(session_id)
        await client.send(request)
        await client.until(client.text)
        await client.notify("session/cancel", sessionId=session_id)
        assert stop_reason(await client.response(request["id"])) == "cancelled"
        told = len(client.received)

        await wait_all_tasks_blocked()
        assert len(client.received) == told
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


async def test_a_cancelled_tool_is_stopped_and_its_call_has_one_end(tmp_path):
    probe = Probe(gate=trio.Event())
    calls = [Call("probe", {"n": n}) for n in range(2)]
    async with connected(tmp_path, replies([*calls, USE], DONE), probe) as (
        _,
        client,
        session_id,
    ):
        request = client.prompting(session_id)
        await client.send(request)
        await probe.reached.wait()
        await client.notify("session/cancel", sessionId=session_id)
        assert stop_reason(await client.response(request["id"])) == "cancelled"
        assert list(ends_of_calls(client).values()) == [["failed"], ["failed"]]
        assert client.story()[-1] == "cancelled"


@pytest.mark.parametrize("answers", [True, False])
async def test_a_permission_that_waits_is_taken_back_by_a_cancel(tmp_path, answers):
    probe = asks()
    async with connected(tmp_path, replies(*ASKING[:1], DONE), probe) as (
        _,
        client,
        session_id,
    ):
        client.on_permission = lambda _: NEVER
        request = client.prompting(session_id)
        await client.send(request)
        await client.asked.wait()
        await client.notify("session/cancel", sessionId=session_id)
        (asked,) = client.asks()
        reply = {"id": asked["id"], "result": CANCELLED}
        if answers:
            await client.send(reply)
        assert stop_reason(await client.response(request["id"])) == "cancelled"
        withdrawn = [
            m for m in client.received if m.get("method") == "$/cancel_request"
        ]
        if not answers:
            assert [m["params"] for m in withdrawn] == [{"requestId": asked["id"]}]
            await client.send(reply)
        assert probe.operations == []
        assert list(ends_of_calls(client).values()) == [["failed"]]
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


@pytest.mark.parametrize("steps", [*range(12), 20, 40, 80])
async def test_a_cancel_is_never_lost_however_early_it_comes(tmp_path, steps):
    async with connected(tmp_path, replies([Say("x"), Hang()], DONE)) as (
        _,
        client,
        session_id,
    ):
        request = client.prompting(session_id)
        await client.send(request)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        await client.notify("session/cancel", sessionId=session_id)
        assert stop_reason(await client.response(request["id"])) == "cancelled"


async def test_a_cancel_in_the_same_bytes_as_its_prompt_is_not_lost(tmp_path):
    async with connected(tmp_path, replies(DONE)) as (stage, client, session_id):
        request = client.prompting(session_id)
        cancel = {"method": "session/cancel", "params": {"sessionId": session_id}}
        await client.send(request, cancel)
        assert stop_reason(await client.response(request["id"])) == "cancelled"
        assert stage.provider.requests == []
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


async def test_a_cancel_with_nothing_to_stop_does_nothing(tmp_path):
    async with connected(tmp_path, replies(DONE, DONE)) as (_, client, session_id):
        for params in ({"sessionId": session_id}, {"sessionId": "nobody"}, {}):
            await client.notify("session/cancel", **params)
        await client.send(b'{"jsonrpc":"2.0","method":"session/cancel","params":5}\n')
        assert stop_reason(await client.prompt(session_id)) == "end_turn"
        await client.notify("session/cancel", sessionId=session_id)
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


async def test_a_withdrawn_prompt_is_cancelled_and_answered(tmp_path):
    script = replies([Say("x"), Hang()], DONE)
    async with connected(tmp_path, script) as (_, client, session_id):
        request = client.prompting(session_id)
        await client.send(request)
        await client.until(client.text)
        await client.notify("$/cancel_request", requestId=99)
        await client.notify("$/cancel_request", requestId=str(request["id"]))
        await client.notify("$/cancel_request", requestId=request["id"])
        assert stop_reason(await client.response(request["id"])) == "cancelled"
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


#### Several at once


async def test_a_second_prompt_is_refused_and_the_first_goes_on(tmp_path):
    gate = trio.Event()
    script = replies([Call("probe"), USE], DONE)
    async with connected(tmp_path, script, Probe(gate=gate)) as (_, client, session_id):
        request = client.prompting(session_id)
        await client.send(request)
        assert error_code(await client.prompt(session_id)) == -32600
        gate.set()
        assert stop_reason(await client.response(request["id"])) == "end_turn"


@pytest.mark.parametrize("method", ["session/cancel", "$/cancel_request"])
async def test_cancelling_one_session_leaves_the_other_alone(tmp_path, method):
    gates = {"one": trio.Event(), "two": trio.Event()}

    async def wait(arguments, operation):
        await operation.dispatch()
        await gates[arguments["n"]].wait()
        return ToolResult("ok")

    def script(request):
        match request.messages[-1]:
            case UserMessage(parts=(TextPart(text=text),)):
                return [Call("probe", {"n": text}), USE]
        return DONE

    async with connected(tmp_path, script, Probe(body=wait)) as (_, client, one):
        two = await client.new_session(tmp_path)
        requests = [client.prompting(one, "one"), client.prompting(two, "two")]
        await client.send(*requests)
        await client.until(lambda: len(client.updates("tool_call")) == 2)
        params = {"sessionId": one, "requestId": requests[0]["id"]}
        await client.notify(method, **params)
        assert stop_reason(await client.response(requests[0]["id"])) == "cancelled"
        gates["two"].set()
        assert stop_reason(await client.response(requests[1]["id"])) == "end_turn"


#### What goes wrong


async def test_a_failed_turn_is_an_error_with_the_reason(tmp_path):
    fault = Fail("the model is on fire", code="on_fire", retryable=False)
    async with connected(tmp_path, replies([Say("a"), fault], DONE)) as (
        _,
        client,
        session_id,
    ):
        failed = await client.prompt(session_id)
        assert error_code(failed) == -32603
        assert "on fire" in failed["error"]["message"]
        assert failed["error"]["data"]["code"] == "on_fire"
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


async def test_a_refused_key_is_an_authentication_that_is_needed(tmp_path):
    fault = Fail("the provider answered 401: bad key", status=401)
    async with connected(tmp_path, replies([fault])) as (_, client, session_id):
        assert error_code(await client.prompt(session_id)) == -32000


async def test_a_limit_of_rounds_is_a_stop_reason(tmp_path):
    script = replies([Call("probe"), USE], DONE)
    async with connected(tmp_path, script, Probe(), max_rounds=1) as (
        _,
        client,
        session_id,
    ):
        assert stop_reason(await client.prompt(session_id)) == "max_turn_requests"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("session/load", {"sessionId": "x"}, -32601),
        ("authenticate", {"methodId": "x"}, -32601),
        ("_vendor/thing", {}, -32601),
        ("m" * 5_000, {}, -32601),
        ("session/prompt", {}, -32602),
        ("session/prompt", {"sessionId": "nobody", "prompt": []}, -32002),
        ("session/set_mode", {"sessionId": "nobody", "modeId": "default"}, -32002),
        ("session/new", {}, -32602),
    ],
)
async def test_what_can_t_be_served_has_its_code(tmp_path, method, params, code):
    async with connected(tmp_path, []) as (_, client, _):
        assert error_code(await client.call(method, **params)) == code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense\n", -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]\n', -32600),
        (b"42\n", -32600),
        (b'{"jsonrpc":"2.0","method":"x","params":"\xff"}\n', -32700),
        (b'{"id":1,"method":"session/new"}\n', -32600),
    ],
)
async def test_a_bad_line_is_answered_under_no_id(tmp_path, line, code):
    async with connected(tmp_path, replies(DONE)) as (_, client, session_id):
        await client.send(line)
        assert error_code(await client.response(None)) == code
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


@pytest.mark.parametrize(
    "line",
    [
        b"\n \r\n",
        b'{"jsonrpc":"2.0","method":"_unknown/thing"}\n',
        b'{"jsonrpc":"2.0","id":77,"result":{}}\n',
        b'{"jsonrpc":"2.0","id":77,"error":{"code":1,"message":"?"}}\n',
        b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"you said what?"}}\n',
    ],
)
async def test_other_lines_are_not_answered(tmp_path, line):
    async with connected(tmp_path, replies(DONE)) as (_, client, session_id):
        before = len(client.received)
        await client.send(line)
        await wait_all_tasks_blocked()
        assert len(client.received) == before
        assert stop_reason(await client.prompt(session_id)) == "end_turn"


async def test_a_bug_is_an_answer_and_not_the_end(caplog):
    async def broken(_):
        raise RuntimeError("told to the log alone")

    async with open_client(broken) as client:
        await client.call("initialize", protocolVersion=1)
        for _ in range(2):
            failed = await client.call("session/new", cwd="/", mcpServers=[])
            assert error_code(failed) == -32603
            assert "told to" not in failed["error"]["message"]
    assert "told to the log alone" in caplog.text


#### Modes


async def test_a_mode_can_be_chosen_also_while_a_turn_runs(tmp_path):
    probe = asks()
    script = replies(
        [Call("probe", {"n": 1}), USE], [Call("probe", {"n": 2}), USE], DONE
    )
    async with connected(tmp_path, script, probe) as (_, client, session_id):
        client.on_permission = lambda _: NEVER
        request = client.prompting(session_id)
        await client.send(request)
        await client.asked.wait()
        mode = {"sessionId": session_id, "modeId": "full_access"}
        assert (await client.call("session/set_mode", **mode))["result"] == {}
        assert [u["currentModeId"] for u in client.updates("current_mode_update")] == [
            "full_access"
        ]
        (asked,) = client.asks()
        answer = choose(asked["params"], "allow_once")
        await client.send({"id": asked["id"], "result": answer})
        assert stop_reason(await client.response(request["id"])) == "end_turn"
        # The rest of the turn is a new run, which is not asked about any more.
        assert probe.calls == [{"n": 1}, {"n": 2}]


async def test_an_unknown_mode_is_refused(tmp_path):
    async with connected(tmp_path, []) as (_, client, session_id):
        mode = {"sessionId": session_id, "modeId": "turbo"}
        assert error_code(await client.call("session/set_mode", **mode)) == -32602


#### Ends


async def test_the_end_of_the_input_stops_the_turn_and_keeps_the_session(tmp_path):
    probe = Probe(gate=trio.Event())
    script = replies([Call("probe"), USE], DONE)
    async with open_stage(tmp_path, script, probe) as stage:
        async with open_client(maker(stage.engine)) as client:
            session_id = await client.start(tmp_path)
            await client.send(client.prompting(session_id))
            await probe.reached.wait()
        session = await stage.engine.open_session(session_id)
        assert (await session.prompt("go on")).text == "done"


async def test_a_question_outlives_the_connection(tmp_path):
    probe = asks()
    async with open_stage(tmp_path, ASKING, probe) as stage:
        async with open_client(maker(stage.engine)) as client:
            client.on_permission = lambda _: NEVER
            session_id = await client.start(tmp_path)
            await client.send(client.prompting(session_id))
            await client.asked.wait()
        session = await stage.engine.open_session(session_id)
        (waiting,) = await session.interactions()
        assert waiting.title == "probe it"


def serving(stage, incoming, outgoing, **limits):
    info = AgentInfo("greenroom", "1")
    return partial(serve_acp, incoming, outgoing, maker(stage.engine), info, **limits)


async def test_a_client_that_goes_away_ends_the_connection(tmp_path):
    ours, theirs = memory_stream_pair()
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serving(stage, theirs, theirs))
        await ours.send_all(b'{"jsonrpc":"2.0","id":1,"method":"nonsense"}\n')
        await ours.aclose()


async def test_a_client_that_does_not_read_is_given_up(tmp_path, caplog):
    to_agent, incoming = memory_stream_one_way_pair()
    outgoing, _unread = lockstep_stream_one_way_pair()
    async with (
        open_stage(tmp_path, []) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serving(stage, incoming, outgoing, max_unsent_bytes=10_000))
        await to_agent.send_all(b"nonsense\n" * 200)
    assert "does not read" in caplog.text


async def test_the_last_answers_have_a_moment_to_be_read(tmp_path, autojump_clock):
    to_agent, incoming = memory_stream_one_way_pair()
    outgoing, _unread = lockstep_stream_one_way_pair()
    async with open_stage(tmp_path, []) as stage:
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serving(stage, incoming, outgoing))
            await to_agent.send_all(b"nonsense\n")
            await to_agent.aclose()
        assert 0.9 < trio.current_time() - started < 1.1


async def test_a_line_that_is_too_long_is_answered_and_ends_the_connection(tmp_path):
    async with connected(tmp_path, []) as (_, client, _):
        await client.send(b"x" * (MAX_MESSAGE_BYTES + 1))
        await client.closed.wait()
        (complaint,) = client.responses(None)
        assert error_code(complaint) == -32600
        assert "longer than" in complaint["error"]["message"]
