"""What must be so of every request that the model was sent (CTX, law 1, law 4).

Calls are paired, nothing is asked again after output, the manifests tell what was
sent, what the user said is in it once, and neither the first thing that the user said
nor what the turn is about ever leaves it, however often the history was compacted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from kit.laws import request_problems
from kit.strict_wire import strings_of
from kit.views import manifests_of, prompt_hash, view_problems
from sim.cast import World
from sim.evidence import Evidence

from greenroom.protocol import (
    MessageRecord,
    MessageRetracted,
    MessagesChanged,
    ModelRequest,
    TapeEntry,
    TextBlock,
    UserMessage,
    events_of,
)
from greenroom.protocol.context import StoredManifest, boundary_of

SAID: Final = re.compile(r"go: command \d+(?: edited \d+)?")


def sending_problems(sessions: Sequence[Evidence], world: World) -> Iterator[str]:
    """Say which laws of requests are broken."""
    requests = {prompt_hash(request): request for request in world.requests}
    for request in world.requests:
        yield from request_problems(request)
        yield from _doubled_problems(request)
    asked: Counter[str] = Counter()
    for session in sessions:
        hashes = [m.manifest.hashes.prompt_hash for m in manifests_of(session.tape)]
        asked.update(hashes)
        mine = [requests[each] for each in hashes if each in requests]
        yield from view_problems(session.tape, mine)
        yield from _kept_problems(session, requests)
        yield from _anchor_problems(session)
    # What is asked anew, for an input that was returned, has a manifest of its own.
    for hashed, times in asked.items():
        if world.repeated[hashed] >= times:
            yield f"law 4: {hashed[:12]} was sent again after output"


def _doubled_problems(request: ModelRequest) -> Iterator[str]:
    for said, times in Counter(_said(request)).items():
        if times > 1 and request.tool_choice != "none":
            yield f"PIN: a request has {said!r} {times} times"


def _said(request: ModelRequest) -> list[str]:
    users = [m for m in request.messages if isinstance(m, UserMessage)]
    texts = strings_of(msgspec.to_builtins(users))
    return [said for text in texts for said in SAID.findall(text)]


#### What is never left out


def _kept_problems(
    session: Evidence, requests: Mapping[str, ModelRequest]
) -> Iterator[str]:
    shown: dict[str, MessageRecord] = {}
    for entry in session.tape:
        _follow(shown, entry)
        stored = _manifest(entry)
        request = stored and requests.get(stored.manifest.hashes.prompt_hash)
        if stored is None or request is None:
            continue
        said = set(_said(request))
        for text in _needed(shown, stored.manifest.message_id):
            if text not in said:
                yield f"CTX: the request of {stored.view_id} lacks {text!r}"


# A compaction is of the transcript as it is when its anchor is written.
def _anchor_problems(session: Evidence) -> Iterator[str]:
    shown: dict[str, MessageRecord] = {}
    for entry in session.tape:
        _follow(shown, entry)
        boundary = boundary_of(entry)
        if boundary is None or boundary.state.attempt_id is None:
            continue
        places = {message.order_seq for message in shown.values()}
        if boundary.state.through_order_seq not in places:
            yield f"TAP-11: the anchor at {entry.seq} tells of what is not there"


def _follow(shown: dict[str, MessageRecord], entry: TapeEntry) -> None:
    for event in events_of(entry):
        if isinstance(event, MessagesChanged):
            shown[event.message.id] = event.message
        elif isinstance(event, MessageRetracted):
            shown.pop(event.message_id, None)


def _manifest(entry: TapeEntry) -> StoredManifest | None:
    found = manifests_of([entry])
    return found[0] if found else None


# What the user said first of all, and what the turn of a reply is about.
def _needed(shown: Mapping[str, MessageRecord], reply: str) -> Iterator[str]:
    if reply not in shown:
        return
    order = shown[reply].order_seq
    before = sorted(
        (m for m in shown.values() if m.order_seq < order), key=lambda m: m.order_seq
    )
    replies = [m.order_seq for m in before if m.role == "assistant"]
    users = [m for m in before if m.role == "user" and m.status != "pending"]
    turn = [m for m in users if m.order_seq > max(replies, default=0)]
    for message in {m.id: m for m in [*users[:1], *turn]}.values():
        for block in message.blocks:
            if isinstance(block, TextBlock):
                yield from SAID.findall(block.text)
