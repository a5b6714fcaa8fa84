"""What a client does with whole sessions: fork, move, rewind, clear, delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from greenroom.protocol import MessageRecord, SessionId, TextBlock
from greenroom.storage import Reader

if TYPE_CHECKING:
    from sim.clients import Client

MAX_SESSIONS: Final = 4
"""Sessions of a history; then nobody forks, so that histories end."""


async def fork(client: Client) -> str:
    """Fork the session, and go on with the fork or not."""
    source, notes = client.session, client.notes
    if len(await client.engine.sessions()) >= MAX_SESSIONS:
        return "there are enough sessions"
    before = await source.messages()
    through = None
    if before and client.chance.random() < 0.6:
        through = client.chance.choice(before).id
    made = await client.engine.fork_session(source.id, through=through)
    notes.forked.append((source.id, made.id))
    copied = list(_said(await made.messages()))
    wanted = _said(_kept(before, await source.messages(), through))
    if not {made.id} & (notes.rewound | notes.cleared | notes.doomed):
        _see_copies(client, list(wanted), copied)
    if client.chance.random() < 0.5:
        client.go_to(made)
    return f"{source.id} through {through} is {made.id}"


async def move(client: Client) -> str:
    """Give the session to some agent."""
    session = client.session
    agents = [entry.id for entry in await client.engine.agents.list()]
    target = client.chance.choice(sorted(agents))
    settings = await client.engine.move_session(session.id, target)
    client.notes.moved += 1
    if settings.agent_id != target:
        client.history.complain(f"DEL-11: {session.id} is of {settings.agent_id}")
    return f"{session.id} to {target}"


async def archive(client: Client) -> str:
    """Put the session away, or take it back."""
    archived = client.chance.random() < 0.5
    row = await client.engine.archive_session(client.session.id, archived=archived)
    if (row.archived_at is not None) != archived:
        client.history.complain(f"{row.id} was archived at {row.archived_at}")
    return f"{row.id}: {archived}"


async def rewind(client: Client) -> str:
    """Take the conversation back to some message."""
    session = client.session
    client.notes.rewound.add(session.id)
    places = [m.id for m in await session.messages() if m.role == "assistant"]
    through = client.chance.choice([None, *places, *places])
    done = await session.rewind(through)
    return f"to {through}: {len(done.messages)}"


async def clear(client: Client) -> str:
    """Forget all that was said."""
    client.notes.cleared.add(client.session.id)
    await client.session.clear()
    return "forgotten"


async def delete(client: Client) -> str:
    """Delete the session, and look for another one."""
    doomed, notes = client.session, client.notes
    notes.doomed.add(doomed.id)
    await client.engine.delete_session(doomed.id)
    notes.deleted.add(doomed.id)
    if left := await _left(client, doomed.id):
        client.history.complain(f"DEL-03: {doomed.id} is deleted and has {left}")
    rows = sorted(await client.engine.sessions(), key=lambda row: row.id)
    if rows:
        client.go_to(client.engine.session(client.chance.choice(rows).id))
    return doomed.id


# Looked at at once: a start puts some of it in order, too.
async def _left(client: Client, session_id: SessionId) -> list[object]:
    def read(reader: Reader) -> list[object]:
        return [
            *reader.messages(session_id, None, 1),
            *reader.pending_inputs(session_id).rows,
            *reader.skill_selection(session_id),
            *reader.heads([session_id]),
        ]

    output = client.engine.state / "scratch" / session_id
    return await client.engine._readers.read(read) + [output] * output.exists()


# What was there all the time, and is to be in the fork.
def _kept(
    before: Sequence[MessageRecord], after: Sequence[MessageRecord], through: str | None
) -> Iterator[MessageRecord]:
    left = {message.id for message in after if message.status == "sent"}
    for message in before:
        if message.status == "sent" and message.id in left:
            yield message
        if message.id == through:
            return


def _said(messages: Sequence[MessageRecord] | Iterator[MessageRecord]) -> Iterator[str]:
    for message in messages:
        texts = [block.text for block in message.blocks if isinstance(block, TextBlock)]
        yield f"{message.role}: {texts}"


def _see_copies(client: Client, wanted: list[str], copied: list[str]) -> None:
    rest = iter(copied)
    missing = [said for said in wanted if said not in rest]
    if missing:
        client.history.complain(f"SES-23: a fork lacks {missing[0][:80]!r}")
