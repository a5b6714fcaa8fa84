"""The conformance suite catches stores that break a rule.

A mutant is a right store behind a wrapper that forgets one thing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from kit.store_contract import CHECKS
from kit.stores import MemoryWorld

from greenroom.storage import (
    Appended,
    Grant,
    Held,
    Member,
    MemoryStore,
    Piece,
    Settled,
)


class Mutant:
    """Passes everything on; subclasses forget one thing."""

    def __init__(self, lives: Callable[[str], bool]) -> None:
        self.store = MemoryStore.create(lives)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def run_group(self, pieces: Sequence[Piece]) -> list[Settled]:
        return self.store.run_group([self.wrap(piece) for piece in pieces])

    def wrap(self, piece: Piece) -> Piece:
        return Piece(lambda _: piece.run(self), piece.aborted, piece.journal)  # type: ignore[arg-type]

    def head(self, grant: Grant) -> int:
        return self.store.page(grant.scope, 0, 1).head


class NoTokenCheck(Mutant):
    def __init__(self, lives: Callable[[str], bool]) -> None:
        super().__init__(lives)
        self.newest: dict[str, Grant] = {}

    def acquire(self, *args: Any, **kwargs: Any) -> Any:
        grant = self.store.acquire(*args, **kwargs)
        if isinstance(grant, Grant):
            self.newest[grant.scope] = grant
        return grant

    def append(self, grant: Grant, *args: Any, **kwargs: Any) -> Any:
        return self.store.append(self.newest[grant.scope], *args, **kwargs)


class NoHeadCheck(Mutant):
    def append(self, grant: Grant, head: int, *args: Any, **kwargs: Any) -> Any:
        return self.store.append(grant, self.head(grant), *args, **kwargs)


class NoHeadCheckOfCommits(Mutant):
    def commit(self, grant: Grant, head: int, *args: Any, **kwargs: Any) -> Any:
        return self.store.commit(grant, self.head(grant), *args, **kwargs)


class NoSettle(Mutant):
    def append(
        self, grant: Grant, head: int, facts: Any, settles: Any = (), *a: Any, **k: Any
    ) -> Any:
        return self.store.append(grant, head, facts, (), *a, **k)


class NoDoubtCheck(Mutant):
    def append(self, *args: Any, append_id: Any = None, **kwargs: Any) -> Any:
        return self.store.append(*args, **kwargs)


class FactByFact(Mutant):
    def append(self, grant: Grant, head: int, facts: Any, *args: Any, **k: Any) -> Any:
        if len(facts) < 2 or args or len(k) > 1:
            return self.store.append(grant, head, facts, *args, **k)
        results = [
            self.store.append(grant, self.head(grant), [fact], *args, **k)
            for fact in facts
        ]
        appended = [result for result in results if isinstance(result, Appended)]
        return Appended(
            self.head(grant),
            tuple(result.seqs[0] for result in appended),
            tuple(result.created[0] for result in appended),
        )


class LeaseIgnored(Mutant):
    def acquire(self, member: Member, scope: Any, *, now: float) -> Any:
        grant = self.store.acquire(member, scope, now=now)
        if isinstance(grant, Held):
            owner = Member(grant.owner.member_id, "", "", 1.0)
            self.store.leave(owner, now=now)
            grant = self.store.acquire(member, scope, now=now)
        return grant


class LeaveForgotten(Mutant):
    def leave(self, *args: Any, **kwargs: Any) -> None:
        pass


class ReleaseForgotten(Mutant):
    def release(self, *args: Any, **kwargs: Any) -> None:
        pass


class BeatForgotten(Mutant):
    def beat(self, *args: Any, **kwargs: Any) -> None:
        pass


class PostedTwice(Mutant):
    def post(self, scope: Any, command_id: str, body: str, *, now: float) -> Any:
        return self.store.post(scope, f"{command_id}{now}", body, now=now)


class CacheForEver(Mutant):
    def __init__(self, lives: Callable[[str], bool]) -> None:
        super().__init__(lives)
        self.cache: dict[str, str] = {}

    def cache_blocks(self, grant: Any, message_id: str, blocks: str, **k: Any) -> Any:
        self.cache[message_id] = blocks
        return self.store.cache_blocks(grant, message_id, blocks, **k)

    def cached_blocks(self, scope: Any, message_id: str) -> str | None:
        return self.cache.get(message_id)


class AnyWordWillDo(Mutant):
    def search(self, query: str, **kwargs: Any) -> Any:
        hits = [self.store.search(word, **kwargs) for word in query.split() or [""]]
        return sorted({hit for found in hits for hit in found}, reverse=True)


class ResetKeepsTheInbox(Mutant):
    def reset(self, grant: Grant, *args: Any, **kwargs: Any) -> Any:
        kept = self.store.inbox(grant)
        result = self.store.reset(grant, *args, **kwargs)
        for command in kept if isinstance(kept, list) else []:
            # Its own id stays taken.
            name = f"{command.command_id}, kept"
            self.store.post(grant.scope, name, command.body, now=1.0)
        return result


class AnyAttemptWillDo(Mutant):
    def request_trace(self, scope: Any, message_id: str, request_seq: int) -> Any:
        found = self.store.traces(scope, message_id)
        of_request = [trace for trace in found if trace.request_seq == request_seq]
        return of_request[-1] if of_request else None


class RequestsOfFactsOnly(Mutant):
    def last_request(self, scope: Any, message_id: str) -> int:
        seqs = {trace.request_seq for trace in self.store.traces(scope, message_id)}
        last = self.store.last_request(scope, message_id)
        return 0 if last in seqs else last


class TraceOfAnybody(Mutant):
    def keep_trace(self, grant: Grant, trace: Any) -> Any:
        hot = self.store.tables.hot[grant.scope]
        return self.store.keep_trace(attrs.evolve(grant, token=hot.token), trace)


class AnyTapeWillDo(Mutant):
    def search_tape(self, scope: Any, query: str, **kwargs: Any) -> Any:
        found = self.store.search(query, scope_prefix=scope)
        until = kwargs.get("until")
        seqs = [seq for _, seq in found if until is None or seq <= until]
        return sorted(seqs, reverse=True)[: max(1, kwargs.get("limit", 20))]


class NoPlaceIsTheLast(Mutant):
    def search_tape(self, scope: Any, query: str, **kwargs: Any) -> Any:
        kwargs.pop("until", None)
        return self.store.search_tape(scope, query, **kwargs)


class MarksFromTheStart(Mutant):
    def named(self, *args: Any, **kwargs: Any) -> Any:
        return self.store.named(*args, **kwargs)[::-1]


class RequestsOfAnyMessage(Mutant):
    def request_entries(self, scope: Any, message_id: str, request_seq: int) -> Any:
        names = ("m1", "m2")
        return [
            e for m in names for e in self.store.request_entries(scope, m, request_seq)
        ]


MUTANTS = Mutant.__subclasses__()


def broken_promises(make: Callable[..., Any]) -> list[str]:
    """Return the promises that stores made by *make* don't keep."""
    broken: list[str] = []
    for promise, check_promise in CHECKS.items():
        try:
            check_promise(MemoryWorld(make))
        except (AssertionError, KeyError, pytest.fail.Exception, Exception):
            broken.append(promise)
    return broken


def test_the_wrapper_alone_breaks_nothing() -> None:
    assert broken_promises(Mutant) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_store_that_forgets_something_is_caught(mutant: type[Mutant]) -> None:
    assert broken_promises(mutant) != []
