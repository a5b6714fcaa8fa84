"""What the gateway's calls ask of the engine, and of the connection they come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from greenroom.actors.agents import AgentManager
from greenroom.actors.bindings import Bindings
from greenroom.actors.context import Compacted
from greenroom.actors.imports import Imports
from greenroom.actors.kernel import ActorInfo
from greenroom.actors.lifecycle import Impact, Moved
from greenroom.actors.sessions import AcceptedInput, Follower, Rewound, TurnResult
from greenroom.actors.skills import Skills
from greenroom.protocol import (
    ActionBlock,
    Answer,
    ImagePart,
    MessageRecord,
    PendingInput,
    SessionId,
    SessionSettings,
    StatusChanged,
    TextPart,
)
from greenroom.protocol.gateway import Attached
from greenroom.storage import MessageHit, Reader, SessionRow

T = TypeVar("T")

Content = str | Sequence[TextPart | ImagePart]


class SessionPort(Protocol):
    """A session, as its handle shows it."""

    @property
    def id(self) -> SessionId: ...

    async def prompt(
        self,
        content: Content,
        *,
        command_id: str = "",
        detached: bool = False,
        endpoint: str = "",
    ) -> TurnResult: ...

    async def queue(
        self, content: Content, *, command_id: str = "", endpoint: str = ""
    ) -> AcceptedInput: ...

    async def steer(
        self,
        content: Content,
        *,
        expected_turn: str | None = None,
        command_id: str = "",
        endpoint: str = "",
    ) -> AcceptedInput: ...

    async def inputs(self) -> tuple[PendingInput, ...]: ...

    async def edit_input(
        self, input_id: str, content: Content
    ) -> tuple[PendingInput, ...]: ...

    async def move_input(self, input_id: str, to: int) -> tuple[PendingInput, ...]: ...

    async def delete_input(self, input_id: str) -> tuple[PendingInput, ...]: ...

    async def promote_input(self, input_id: str) -> tuple[PendingInput, ...]: ...

    async def retry_input(self, input_id: str) -> tuple[PendingInput, ...]: ...

    async def degrade_input(self, input_id: str) -> tuple[PendingInput, ...]: ...

    async def release_inputs(self) -> tuple[PendingInput, ...]: ...

    async def answer(self, interaction_id: str, answer: Answer) -> None: ...

    async def configure(self, **changes: Any) -> SessionSettings: ...  # noqa: ANN401 - the fields of SessionSettings

    async def rewind(
        self, through: str | None, *, files: bool = False, dry_run: bool = False
    ) -> Rewound: ...

    async def clear(self) -> None: ...

    async def compact(self, focus: str = "") -> Compacted: ...

    async def undo_compaction(self) -> bool: ...

    async def cancel(self) -> None: ...

    async def messages(
        self, *, before: int | None = None, limit: int = 100
    ) -> list[MessageRecord]: ...

    async def interactions(self) -> tuple[ActionBlock, ...]: ...

    def follow(
        self, *, after: int | None = None, incarnation: str | None = None
    ) -> AbstractAsyncContextManager[Follower]: ...

    async def start_following(
        self, *, after: int | None = None, incarnation: str | None = None
    ) -> Follower: ...


class EnginePort(Protocol):
    """An engine, as its clients need it; `greenroom.engine.Engine` is one."""

    @property
    def agents(self) -> AgentManager: ...

    @property
    def skills(self) -> Skills: ...

    @property
    def bindings(self) -> Bindings: ...

    @property
    def imports(self) -> Imports: ...

    async def create_session(
        self,
        *,
        workspace: Path | str | None = None,
        agent: str | None = None,
        title: str = "",
        provider: str | None = None,
        model: str | None = None,
        permission_mode: str | None = None,
        system_prompt: str | None = None,
        max_rounds: int | None = None,
    ) -> SessionPort: ...

    def session(self, session_id: str) -> SessionPort: ...

    def status(self, session_id: str) -> StatusChanged | None: ...

    async def search(
        self, query: str, *, session_id: str | None = None, limit: int = 12
    ) -> list[MessageHit]: ...

    async def archive_session(
        self, session_id: str, *, archived: bool = True
    ) -> SessionRow: ...

    async def fork_session(
        self,
        session_id: str,
        *,
        through: str | None = None,
        rounds: int | None = None,
    ) -> SessionPort: ...

    async def delete_session(self, session_id: str) -> None: ...

    async def move_session(self, session_id: str, agent: str) -> SessionSettings: ...

    async def assess_move(self, agent: str) -> Impact: ...

    async def move_sessions(self, agent: str, target: str) -> Moved: ...

    async def read(self, fn: Callable[[Reader], T]) -> T: ...

    def metrics(self) -> dict[str, float]: ...

    def tree(self) -> tuple[ActorInfo, ...]: ...


Handler = Callable[[EnginePort, Any], Awaitable[msgspec.Struct]]
"""Does one kind of request, whose parameters it is given decoded."""


class Attacher(Protocol):
    """What follows sessions for one connection."""

    async def attach(
        self, session_id: SessionId, after: int | None, incarnation: str | None
    ) -> Attached:
        """Follow a session; what was followed of it before is replaced.

        Its events are told after what this returns was sent.
        """
        ...

    def detach(self, session_id: SessionId) -> None:
        """Follow it no more; no error if it was not followed."""
        ...
