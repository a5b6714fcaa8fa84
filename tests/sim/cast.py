"""Who plays beside the engine: a model that may do anything, and tools likewise.

Both draw what they do from one stream of chance. A `World` outlives the lives of the
engine: what its tools did has happened, whatever became of the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

import attrs
import trio
from kit.views import prompt_hash

from greenroom.engine import (
    Needs,
    Operation,
    PermissionRequired,
    Question,
    ToolRefused,
    ToolResult,
)
from greenroom.protocol import (
    HOOK_NAMES,
    DispatchCommitted,
    HookEvent,
    ModelRequest,
    PlanEntry,
    ProviderFailure,
    QuestionOption,
    Stop,
    UsageReported,
    journal_record,
)
from greenroom.storage import Reader
from greenroom.testing import (
    Call,
    Cue,
    End,
    Fail,
    Halt,
    Hang,
    Pause,
    Raise,
    RecordingTool,
    RehearsalProvider,
    Say,
    Think,
    Use,
)

MAX_CALLS: Final = 14
"""Calls of one history; then the model only talks, so that histories end."""

FAULTS: Final = (
    Fail("busy", status=503, headers={"retry-after-ms": "7"}),
    Fail("slow down", status=429, headers={"retry-after": "2"}),
    Fail("later", status=429, headers={"retry-after": "86400"}),
    Fail("broken", status=500),
    Fail("wrong", status=400),
    Raise("a bug in the adapter"),
    End(),
    Hang(),
)
OVERFLOWS: Final = (
    Fail("too long", status=400, code="context_length_exceeded"),
    Fail("too long", status=400, code="exceed_context_size_error"),
    Fail("the request is too large", status=413),
    Fail("prompt is too long: 90000 tokens > 80000 maximum", status=400),
    Fail("input is too long for requested model"),
    Fail("your input exceeds the context window of this model", status=400),
    Fail(
        "maximum context length is 80000 tokens (70000 in the messages, 16000 in the"
        " completion)",
        status=400,
    ),
    Fail(
        "the request exceeds the available context size, n_prompt_tokens: 90000,"
        " n_ctx: 80000",
        status=400,
    ),
    Fail(
        "the input token count (90000) exceeds the maximum number of tokens allowed"
        " (80000)",
        status=400,
    ),
    Fail("maximum prompt length is 80000 but the request contains 90000 tokens"),
    Fail("the prompt is longer than the model's context length", status=422),
    Fail("please reduce the length of the messages", status=400),
    Fail("the input is greater than the context length", status=500),
    Fail("invalid params, context window exceeds limit", status=400),
    Fail("exceeded model token limit: 80000 (requested: 90000)", status=400),
    Fail("the prompt is too large for model with 80000 maximum context", status=400),
    Fail("prompt too long; exceeded max context length by 10000 tokens", status=400),
    Fail("input length and max_tokens exceed context limit: 79000 + 9000 > 80000"),
    Fail("prompt tokens (90000) exceed model maximum (80000)", status=400),
    Fail("current length is 90000 while limit is 80000", status=400),
    Fail("maximum input length is 80000 tokens", status=400),
    Fail("input tokens exceed the configured limit of 80000 tokens", status=400),
    Fail(
        "Request too large for model on tokens per min: Limit 80000, Requested 90000",
        status=429,
        code="rate_limit_exceeded",
    ),
    Fail("max_tokens is too large: 90000; the context window is 80000", status=400),
)
"""How providers say that a request was too large, each in its own words."""
MALFORMED: Final = ('{"n": ', "[]", "null", '{"n": "\\u0000"}', "\ud800", "{}" * 9)
TOOLS: Final = ("free", "free", "read", "read", "write", "write", "asks", "no", "?")
DEEDS: Final = {
    "ok": 12,
    "slow": 4,
    "raise early": 1,
    "raise late": 2,
    "refuse": 1,
    "silent": 1,
    "ask": 2,
    "ask late": 1,
    "hang early": 1,
    "hang": 1,
    "stubborn": 1,
    "sleeper": 1,
    "large": 1,
    "odd": 1,
    "chatty": 1,
}
CONTROL: Final = (UsageReported, Stop, ProviderFailure)
"""Events that are no output."""


@attrs.define(eq=False)
class History:
    """What happened, line by line; the same for the same seed."""

    lines: list[str] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)

    def note(self, who: str, what: object) -> None:
        self.lines.append(f"{trio.current_time():.6f} {who} {what}")

    def complain(self, problem: str) -> None:
        self.lines.append(f"PROBLEM {problem}")
        self.problems.append(problem)


@attrs.define(eq=False)
class World:
    """The model and the tools of one history."""

    chance: Random
    history: History
    faulty: bool = False
    """The model fails more often than not."""
    calm: bool = False
    """The model only says that it is fine."""
    reader: Reader | None = None
    """What the engine that lives now has on its disk."""
    effects: dict[str, str] = attrs.field(factory=dict)
    """The session of each effect that happened, by its idempotency key."""
    requests: list[ModelRequest] = attrs.field(factory=list)
    answered: set[str] = attrs.field(factory=set)
    """Hashes of what was asked and had a reply that began to arrive."""
    repeated: Counter[str] = attrs.field(factory=Counter)
    """How often it was asked again after that."""
    numbers: int = 0
    active: int = 0

    #### The model

    def provider(self) -> Model:
        return Model(self, RehearsalProvider(self.reply))

    def reply(self, request: ModelRequest) -> list[Cue]:
        """Return what the model does this time."""
        if self.calm:
            return [Say("fine"), Use(1, 1), Halt()]
        if request.tool_choice == "none" and self.chance.random() < 0.7:
            # It takes long enough for others to come between.
            pause = Pause(self.chance.random() * 3)
            return [pause, Say("## Goal\nall of it"), Use(3, 1), Halt()]
        cues = [self._cue() for _ in range(self.chance.randint(0, 4))]
        calls = any(isinstance(cue, Call) for cue in cues)
        # Now and then as much as a window has: pressure that no error tells of.
        used = self.chance.choice((*(3,) * 12, 1_900, 79_900))
        return [*cues, Use(used, 1), self._end(calls=calls)]

    def _cue(self) -> Cue:
        match self.chance.randrange(10):
            case 0:
                return Think("hm", {"signature": "x"} if self.numbers % 2 else None)
            case 1 | 2:
                times = self.chance.choice((1, 1, 200))
                return Say("words and words" * times, self.chance.choice((0, 3)))
            case 3:
                return Pause(self.chance.random() * self.chance.choice((0.03, 3)))
            case _ if self.numbers < MAX_CALLS:
                return self._call()
            case _:
                return Say("enough")

    def _call(self) -> Call:
        self.numbers += 1
        name = self.chance.choice(TOOLS)
        name = "" if name == "?" else name
        arguments: Any = {"n": self.numbers}
        if self.chance.random() < 0.08:
            arguments = self.chance.choice(MALFORMED)
        call_id = self.chance.choice(("", "", "", "same", "same-2"))
        return Call(name, arguments, call_id, cut=self.chance.random() < 0.03)

    def _end(self, *, calls: bool) -> Cue:
        luck = self.chance.random() * (0.3 if self.faulty else 1)
        if luck < 0.08:
            return self.chance.choice(OVERFLOWS)
        if luck < 0.22:
            return self.chance.choice((*FAULTS, Halt("max_tokens"), Halt("tool_use")))
        return Halt("tool_use") if calls else Halt()

    #### Who looks on

    def hook(self) -> Listener:
        return Listener(self)

    #### The tools

    def tools(self) -> list[RecordingTool]:
        options = (QuestionOption("a"), QuestionOption("b"))
        return [
            RecordingTool("free", body=self.work),
            RecordingTool("read", body=self.work, read_only=True, parallel_safe=True),
            RecordingTool("write", body=self.work, permission="may it?"),
            RecordingTool("asks", question=Question("which?", "q", options)),
            RecordingTool("no", refuse=ToolRefused("never")),
        ]

    async def work(self, arguments: dict[str, Any], op: Operation) -> ToolResult:
        """Be a tool: the body of every one of them."""
        (deed,) = self.chance.choices(tuple(DEEDS), tuple(DEEDS.values()))
        deed = "ok" if self.calm else deed
        key = op.idempotency_key[-12:]
        self.history.note(f"tool {key}", deed)
        result = await self._do(deed, op)
        self.history.note(f"tool {key}", "returns")
        return result

    async def _do(self, deed: str, op: Operation) -> ToolResult:
        match deed:
            case "raise early":
                raise RuntimeError("before anything")
            case "refuse":
                raise ToolRefused("not this time")
            case "silent":
                return ToolResult("nothing was done")
            case "ask":
                raise PermissionRequired(Needs("and this?", "late", "other"))
            case "hang early":
                await trio.sleep_forever()
            case "sleeper":
                with trio.CancelScope(shield=True):
                    await trio.sleep(9)
            case "slow":
                await trio.sleep(self.chance.random())
            case "chatty":
                op.progress("working")
                op.report(title="at work")
                await op.update_plan((PlanEntry("go on"),))
            case _:
                pass
        await op.dispatch()
        await self._linger()
        self._effect(op)
        return await self._afterwards(deed, op)

    async def _afterwards(self, deed: str, op: Operation) -> ToolResult:
        match deed:
            case "raise late":
                raise RuntimeError("after the effect")
            case "ask late":
                raise PermissionRequired(Needs("and this?", "late", "other"))
            case "hang":
                await trio.sleep_forever()
            case "stubborn":
                with trio.CancelScope(shield=True):
                    await trio.sleep(9)
            case _:
                await self._linger()
        more = {"large": "x" * 120_000, "odd": "\x00\ud800\r"}.get(deed, "")
        return ToolResult(f"did {op.idempotency_key[-12:]}{more}")

    async def _linger(self) -> None:
        # No checkpoint in most cases: effects follow dispatches at once, too.
        if self.chance.random() < 0.3:
            await trio.sleep(self.chance.random() * 0.05)

    def _effect(self, op: Operation) -> None:
        key = op.idempotency_key
        self.history.note(f"tool {key[-12:]}", "EFFECT")
        if key in self.effects:
            self.history.complain(f"law 3: the effect {key[-12:]} happened twice")
        if not self._is_dispatched(op):
            self.history.complain(f"law 3: the effect {key[-12:]} was not dispatched")
        self.effects[key] = op.context.session_id
        op.context.scratch.mkdir(parents=True, exist_ok=True)
        (op.context.scratch / key[-12:]).touch()

    def _is_dispatched(self, op: Operation) -> bool:
        assert self.reader is not None
        try:
            entries = self.reader.run_entries(op.context.session_id, op.id.run_id)
        except Exception:
            # The disk is gone. What it holds is looked at afterwards.
            return True
        records = [journal_record(entry.fact) for entry in entries]
        return any(
            isinstance(record, DispatchCommitted) and record.operation == op.id
            for record in records
        )


@attrs.define(eq=False)
class Listener:
    """A hook that takes its time, raises, or never comes back (SKL-10)."""

    world: World
    name: str = "listener"
    on: frozenset[str] = HOOK_NAMES
    seconds: float = 1.0

    async def tell(self, event: HookEvent) -> None:
        self.world.history.note("hook", type(event).__name__)
        match self.world.chance.randrange(12):
            case 0:
                raise RuntimeError("a bug in the hook")
            case 1:
                await trio.sleep_forever()
            case 2:
                await trio.sleep(self.world.chance.random() * 2)
            case _:
                pass


@attrs.define(eq=False)
class Model:
    """The provider: a rehearsal that is watched for what it may not be asked."""

    world: World
    rehearsal: RehearsalProvider
    id: str = "rehearsal"
    replayable: bool = True
    max_told_ms: int = 60_000

    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, **rest: Any
    ) -> AsyncGenerator[AsyncIterator[Any]]:
        world, asked = self.world, prompt_hash(request)
        world.requests.append(request)
        if asked in world.answered:
            world.answered.remove(asked)
            world.repeated[asked] += 1
        world.history.note("model", f"is asked {asked[:12]}")
        world.active += 1
        try:
            async with self.rehearsal.stream(request, **rest) as events:
                watched = self._watched(events, asked)
                yield watched
                await watched.aclose()
        finally:
            world.active -= 1

    async def _watched(self, events: Any, asked: str) -> AsyncGenerator[Any]:
        silent = True
        async for event in events:
            if silent and not isinstance(event, CONTROL):
                silent = False
                self.world.answered.add(asked)
            yield event
