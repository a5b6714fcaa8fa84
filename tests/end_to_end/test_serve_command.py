"""``greenroom serve`` as a process of its own, over a real socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, open_websocket_url

SECRET = "0123456789abcdef" * 2
COMMAND = [sys.executable, "-P", "-m", "greenroom", "serve", "--port", "0", "--json"]


def environment(tmp_path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GREENROOM")}
    kept.pop("OPENAI_API_KEY", None)
    return kept | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)} | more


async def start(command, env, task_status):
    await trio.run_process(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
        env=env,
        task_status=task_status,
    )


@asynccontextmanager
async def serving(tmp_path, *arguments: str, **env: str):
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            start, [*COMMAND, *arguments], environment(tmp_path, **env)
        )
        assert process.stdout is not None
        with trio.fail_after(30):
            line = await process.stdout.receive_some(4_096)
        yield process, json.loads(line)
        if process.returncode is None:
            process.kill()


def fails(tmp_path, *arguments: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=environment(tmp_path, **env),
    )
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr + done.stdout
    return done.returncode, done.stderr


class Client:
    def __init__(self, websocket: Any) -> None:
        self.websocket = websocket
        self.last = 0
        self.notices: list[dict[str, Any]] = []

    async def call(self, method: str, **params: Any) -> Any:
        self.last += 1
        request = {"jsonrpc": "2.0", "id": self.last, "method": method}
        await self.websocket.send_message(json.dumps(request | {"params": params}))
        while True:
            message = json.loads(await self.websocket.get_message())
            if message.get("id") == self.last:
                assert "result" in message, message
                return message["result"]
            self.notices.append(message)

    async def event(self, kind: str) -> dict[str, Any]:
        """Wait for an event of a kind that was not waited for before."""
        with trio.fail_after(30):
            while True:
                while self.notices:
                    event = self.notices.pop(0)["params"]["event"]
                    if event["type"] == kind:
                        return event
                self.notices.append(json.loads(await self.websocket.get_message()))


@asynccontextmanager
async def client_of(info, **headers: str):
    url = info["url"].replace("http", "ws") + "acp"
    extra = [(k.encode(), v.encode()) for k, v in headers.items()]
    async with open_websocket_url(url, extra_headers=extra) as websocket:
        try:
            yield Client(websocket)
        finally:
            # The library leaves that to the collector where the server has closed.
            await trio.aclose_forcefully(websocket._stream)


async def test_the_demo_says_that_it_is_one_whatever_model_is_configured(tmp_path):
    command = [*COMMAND[:-1], "--demo"]
    env = environment(tmp_path, GREENROOM_MODEL="m", GREENROOM_BASE_URL="http://x/v1")
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(start, command, env)
        assert process.stderr is not None
        told = b""
        with trio.fail_after(30):
            while b"Ctrl-C" not in told:
                told += await process.stderr.receive_some(4_096)
        process.send_signal(signal.SIGTERM)
    assert b"a script plays the model" in told
    assert b"no model is configured" not in told


async def test_a_scripted_session_is_served_without_a_key_and_stops_in_order(tmp_path):
    async with serving(tmp_path, "--demo") as (process, info):
        page = await trio.to_thread.run_sync(urllib.request.urlopen, info["url"])
        assert page.status == 200
        page.close()
        async with client_of(info) as client:
            (session,) = (await client.call("_greenroom/session/list"))["sessions"]
            await client.call(
                "_greenroom/session/attach", sessionId=session["id"], after=0
            )
            await client.event("plan/updated")
            process.send_signal(signal.SIGTERM)
            with suppress(ConnectionClosed):
                while True:
                    await client.websocket.get_message()
            assert client.websocket.closed.code == 1001
        with trio.fail_after(15):
            assert await process.wait() == 0


async def test_a_killed_server_comes_back_and_clients_go_on_with_their_cursor(tmp_path):
    state = ("--state", str(tmp_path / "state"))
    prompt = {"content": "go", "commandId": "one"}
    async with serving(tmp_path, *state) as (process, info):
        async with client_of(info) as client:
            made = await client.call(
                "_greenroom/session/create", workspace=str(tmp_path)
            )
            session_id = made["session"]["id"]
            await client.call("_greenroom/session/attach", sessionId=session_id)
            await client.call("_greenroom/prompt", sessionId=session_id, **prompt)
            ended = await client.event("stream/completed")
        process.kill()
        await process.wait()
    async with serving(tmp_path, *state) as (process, info):
        async with client_of(info) as client:
            await client.call(
                "_greenroom/session/attach", sessionId=session_id, after=ended["seq"]
            )
            # The same command is the same turn, also for another process.
            again = await client.call(
                "_greenroom/prompt", sessionId=session_id, **prompt
            )
            assert again["messageId"] == ended["message"]["id"]
            await client.call(
                "_greenroom/prompt",
                sessionId=session_id,
                content="more",
                commandId="two",
            )
            after = await client.event("stream/completed")
            assert after["seq"] > ended["seq"]
        process.send_signal(signal.SIGINT)
        with trio.fail_after(15):
            assert await process.wait() == 130


async def test_a_token_from_the_environment_is_needed_and_in_no_line_of_output(
    tmp_path,
):
    async with serving(tmp_path, "--demo", GREENROOM_TOKEN=SECRET) as (process, info):
        assert info["authenticated"] is True
        async with client_of(info, Authorization=f"Bearer {SECRET}") as client:
            assert await client.call("_greenroom/session/list")
        request = urllib.request.Request(
            info["url"] + "metrics", headers={"Authorization": "Bearer wrong"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            await trio.to_thread.run_sync(urllib.request.urlopen, request)
        assert refused.value.code == 401
        refused.value.close()
        # A terminal that is gone stops it in order, too.
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        said = b"".join([part async for part in process.stderr])
        assert SECRET.encode() not in said
        with trio.fail_after(15):
            assert await process.wait() == 130


def test_a_token_file_that_others_may_read_is_refused(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(SECRET)
    file.chmod(0o644)
    code, said = fails(tmp_path, "--token-file", str(file))
    assert (code, "chmod 600" in said) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "token"),
        (["--token-file", "/nowhere/at/all"], "can't be read"),
        (["--tls-key", "/nowhere"], "certificate"),
        (["--tls-cert", "/nowhere"], "certificate"),
        (["--host", "203.0.113.7", "--insecure"], "token"),
    ],
)
def test_what_can_not_be_served_is_said_in_a_sentence(tmp_path, arguments, says):
    code, said = fails(tmp_path, *arguments)
    assert code == 2
    assert says in said


def test_a_port_that_is_taken_is_said_in_a_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = fails(tmp_path, "--port", port)
    assert code == 2
    assert "--port" in said
