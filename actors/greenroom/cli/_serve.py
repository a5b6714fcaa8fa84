"""``greenroom serve``: an engine for any number of clients, and a page to look at it.

It listens first, so that whoever supervises it can ask how far it is, and lets clients
in when everything that a dead engine left is settled. The first signal stops it in
order: nobody new, clients are told, turns settle, what waits for an answer stays. The
second one ends it at once; what is durable is on disk either way.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import ssl
import sys
import tempfile
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final, final

import attrs
import trio

from greenroom.actors.endpoints import AgentSession, SessionMaker
from greenroom.actors.endpoints.gateway import raise_descriptors
from greenroom.engine import Engine, Provider, SessionDefaults, open_engine
from greenroom.gateway import AccessError, Gateway, Token, listen, tokens_of
from greenroom.protocol import ModelChoice

from ._agents import agent_settings, with_agent_model
from ._budget import start_prices
from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import json_line
from ._hooks import make_hooks
from ._provider import open_provider, rate_limits_of
from ._rehearsal import REHEARSAL_ID
from ._run import SYSTEM_PROMPT
from ._scripted import (
    DEMO_MODEL,
    DEMO_PROMPT,
    DEMO_TITLE,
    scripted,
    write_demo_files,
)
from ._tokens import TOKEN_VARIABLE, read_secret

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve_command(arguments: argparse.Namespace, config: Config) -> int:
    """Serve until a signal comes, and return the exit status."""
    try:
        tokens = _tokens(arguments.token_file, os.environ.get(TOKEN_VARIABLE))
    except AccessError as exc:
        raise CliError(str(exc), hint=exc.hint) from exc
    tls = _tls(arguments.tls_cert, arguments.tls_key)
    raise_descriptors()
    with _place(arguments, config) as (workspace, config):
        server = _Server(arguments, config, tokens, tls, workspace)
        return trio.run(server.run)


@contextmanager
def _place(
    arguments: argparse.Namespace, config: Config
) -> Generator[tuple[Path, Config]]:
    # The demo has its own folders, which are removed at the end.
    if not arguments.demo:
        yield arguments.cwd or Path.cwd(), config
        return
    with tempfile.TemporaryDirectory(prefix="greenroom-serve-") as name:
        workspace = Path(name, "workspace")
        workspace.mkdir()
        write_demo_files(workspace)
        yield workspace, attrs.evolve(config, state=Path(name, "state"))


#### Secrets


def _tokens(file: Path | None, environment: str | None) -> tuple[Token, ...]:
    found: tuple[Token, ...] = ()
    if file is not None:
        found += tokens_of(read_secret(file))
    if environment:
        found += (Token.of(environment),)
    return found


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None:
        raise CliError("a key without its certificate", hint="name it with --tls-cert")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # A handshake costs the server more than the client, so one connection gets one.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ssl.SSLError) as exc:
        raise CliError(
            f"the certificate can't be used: {exc.strerror or exc}",
            hint="both files are PEM, and the key has no passphrase",
        ) from exc
    return context


def _no_password() -> str:
    # Without it, one would be asked for on the terminal.
    return ""


#### Serving


@final
@attrs.define(eq=False)
class _Server:
    arguments: argparse.Namespace
    config: Config
    tokens: tuple[Token, ...]
    tls: ssl.SSLContext | None
    workspace: Path
    _stopped: trio.Event = attrs.field(factory=trio.Event, init=False)
    _status: ExitCode = attrs.field(default=ExitCode.OK, init=False)

    async def run(self) -> int:
        async with AsyncExitStack() as stack:
            beside = await stack.enter_async_context(trio.open_nursery())
            stack.callback(beside.cancel_scope.cancel)
            await beside.start(self._heed_signals)
            gateway = await self._listen(stack)
            engine, provider, model = await self._engine(stack, beside)
            make_session = self._maker(engine, provider, model)
            await stack.enter_async_context(gateway.serving(engine, make_session))
            if self.arguments.demo:
                await _begin_demo(engine)
            self._say(gateway, rehearsed=provider.id == REHEARSAL_ID)
            await self._stopped.wait()
        return self._status

    async def _listen(self, stack: AsyncExitStack) -> Gateway:
        given = self.arguments
        listening = listen(
            host=given.host,
            port=given.port,
            tokens=self.tokens,
            tls=self.tls,
            insecure=given.insecure,
            allow_origins=given.allow_origin or (),
        )
        try:
            return await stack.enter_async_context(listening)
        except AccessError as exc:
            raise CliError(str(exc), hint=exc.hint) from exc
        except OSError as exc:
            why = exc.strerror or exc
            hint = "name an address of this machine with --host, or leave it out"
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                hint = "another server may have it; choose another one with --port"
            raise CliError(
                f"{given.host}:{given.port} can't be listened on: {why}", hint=hint
            ) from exc

    async def _engine(
        self, stack: AsyncExitStack, beside: trio.Nursery
    ) -> tuple[Engine, Provider, str]:
        config = with_agent_model(self.config, None)
        if self.arguments.demo:
            provider, model = scripted(), DEMO_MODEL
        else:
            provider, model = await open_provider(config, stack)
        opening = open_engine(
            state=config.state,
            provider=provider,
            rate_limits=rate_limits_of(config, provider),
            program="greenroom serve",
            hooks=make_hooks(config.hooks, os.environ),
            prices=await start_prices(config, beside),
        )
        engine = await stack.enter_async_context(opening)
        defaults = SessionDefaults(
            workspace=self.workspace,
            model=ModelChoice(provider.id, model),
            permission_mode=config.permission_mode,
            system_prompt=SYSTEM_PROMPT,
            max_rounds=config.max_rounds,
        )
        return engine.with_defaults(defaults), provider, model

    def _maker(self, engine: Engine, provider: Provider, model: str) -> SessionMaker:
        async def make(folder: Path) -> AgentSession:
            return await engine.create_session(
                workspace=folder,
                provider=provider.id,
                model=model,
                max_rounds=self.config.max_rounds,
                **await agent_settings(engine, self.config, None, SYSTEM_PROMPT),
            )

        return make

    def _say(self, gateway: Gateway, *, rehearsed: bool) -> None:
        if self.arguments.json:
            line = {
                "url": gateway.url,
                "port": gateway.port,
                "pid": os.getpid(),
                "authenticated": bool(self.tokens),
            }
            sys.stdout.write(json_line(line))
            sys.stdout.flush()
            return
        print(f"greenroom serves at {gateway.url}", flush=True)
        if self.tokens:
            print("a client needs a token, and so does the page", file=sys.stderr)
        if self.arguments.demo:
            print(
                "a script plays the model, in folders that are removed at the end",
                file=sys.stderr,
            )
        elif rehearsed:
            print(
                "no model is configured: a scripted rehearsal answers", file=sys.stderr
            )
        print("Ctrl-C stops it", file=sys.stderr)

    async def _heed_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                status = ExitCode.OK
                if number != signal.SIGTERM:
                    status = ExitCode.INTERRUPTED
                if self._stopped.is_set():
                    # What is durable is on disk, and children end with us.
                    os._exit(status)
                self._status = status
                self._stopped.set()


async def _begin_demo(engine: Engine) -> None:
    session = await engine.create_session(title=DEMO_TITLE)
    await session.queue(DEMO_PROMPT)
