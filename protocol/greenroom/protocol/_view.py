"""From a transcript to the messages of a request, in the order that keeps caches warm.

The system prompt; the user's first message, if what follows does not hold it; the
checkpoint, which stands for what is left out; the history; the active turn, with
what memory and directives contribute in front of the user's words (CTX-01). Every
request, of any kind, is made here, and a builder knows of each part why it is in, and
of each message of the transcript that is not, why not (CTX-05).

That all of it can be sent is `_pairing`'s concern.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

import attrs

from ._canonical import safe_text, sha256_hex
from ._messages import (
    Block,
    ChatMessage,
    MessageRecord,
    SystemMessage,
    TextPart,
    UserMessage,
)
from ._pairing import Pairing, user_message
from ._rejection import MAX_REJECTED, RejectedItem, neutralised
from ._view_parts import (
    Contribution,
    ContributionKind,
    Excluded,
    ExcludedReason,
    Part,
    SkillContext,
    SyntheticPart,
    TurnStart,
)

MAX_EXCLUDED: Final = 64
"""Ranges that are told apart; what is excluded beyond them widens the last range of the
same reason, whose count stays exact."""


@attrs.frozen
class _Placed:
    """A record in the history: where its messages begin."""

    order: int
    index: int
    is_user: bool


@final
@attrs.define(eq=False)
class ViewBuilder:
    """Makes the messages of a run's requests, each round once."""

    provider: str
    model: str
    retracted: Sequence[int] = ()
    """Places of messages that were taken back, in order, each as often as it was."""
    unread: Callable[[], Sequence[int]] = attrs.field(default=tuple, init=False)
    """Returns the places of messages that wait for a turn of their own, in order."""
    anchor_entry: int | None = attrs.field(default=None, init=False)
    """The entry of the tape that says where the history begins."""
    skills: tuple[SkillContext, ...] = attrs.field(default=(), init=False)
    """Those that the instructions hold."""
    _system: SystemMessage | None = attrs.field(default=None, init=False)
    _pin: MessageRecord | None = attrs.field(default=None, init=False)
    _checkpoint: UserMessage | None = attrs.field(default=None, init=False)
    _sections: tuple[SyntheticPart, ...] = attrs.field(default=(), init=False)
    _body: Pairing = attrs.field(init=False)
    _placed: list[_Placed] = attrs.field(factory=list[_Placed], init=False)
    _excluded: list[Excluded] = attrs.field(factory=list[Excluded], init=False)
    _last_order: int = attrs.field(default=0, init=False)
    # The message of the user that the turn is about, without contributions; where it
    # is in the body; and where the rounds of the run begin behind it.
    _asked: UserMessage | None = attrs.field(default=None, init=False)
    _asked_at: int = attrs.field(default=0, init=False)
    _contributions: list[Contribution] = attrs.field(
        factory=list[Contribution], init=False
    )
    _turn: MessageRecord | None = attrs.field(default=None, init=False)
    _resumed_until: int | None = attrs.field(default=None, init=False)
    # Shared by all forks: what a provider refused once it refuses in later turns too.
    _rejected: list[RejectedItem] = attrs.field(factory=list[RejectedItem], init=False)

    def __attrs_post_init__(self) -> None:
        self._body = Pairing(self.provider, self.model)

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """What the next request carries."""
        return neutralised((*self._front, *self._body.messages), self._rejected)

    def reject(self, item: RejectedItem) -> None:
        """Leave *item* out from now on, in every builder that this one came from."""
        self._rejected.append(item)
        del self._rejected[:-MAX_REJECTED]

    @property
    def left_out_items(self) -> int:
        """How many items a provider has refused so far."""
        return len(self._rejected)

    def fork(self) -> ViewBuilder:
        """Return a builder that goes on from here and leaves this one as it is."""
        fork = ViewBuilder(self.provider, self.model, self.retracted)
        fork.unread = self.unread
        fork.anchor_entry, fork.skills = self.anchor_entry, self.skills
        fork._system, fork._pin = self._system, self._pin
        fork._checkpoint, fork._sections = self._checkpoint, self._sections
        fork._body = self._body.fork()
        fork._placed, fork._excluded = self._placed.copy(), self._excluded.copy()
        fork._last_order = self._last_order
        fork._asked, fork._asked_at = self._asked, self._asked_at
        fork._contributions = self._contributions.copy()
        fork._turn, fork._resumed_until = self._turn, self._resumed_until
        fork._rejected = self._rejected
        return fork

    #### In front of the history

    def add_system(self, text: str) -> None:
        """Put instructions first; nothing when *text* is blank."""
        if text.strip():
            self._system = SystemMessage(safe_text(text))

    def replace_system(self, text: str) -> None:
        """Put other instructions first; what was said stays as it is (TOL-23)."""
        self._system = None
        self.add_system(text)

    def pin(self, record: MessageRecord) -> None:
        """Keep the user's message *record* in front while the history lacks it."""
        self._pin = record

    def add_checkpoint(self, text: str, sections: Sequence[SyntheticPart]) -> None:
        """Let *text* stand for the part of the transcript that is left out (CTX-02)."""
        self._checkpoint = UserMessage((TextPart(safe_text(text)),))
        self._sections = tuple(sections)

    @property
    def has_pin(self) -> bool:
        """Whether a message of the user is kept, be it in front or in the history."""
        return self._pin is not None

    @property
    def pinned(self) -> MessageRecord | None:
        """The message that stands in front of a history that does not hold it."""
        pin, first = self._pin, self._placed[0].order if self._placed else 0
        return None if pin is None or 0 < first <= pin.order_seq else pin

    @property
    def _pin_message(self) -> UserMessage | None:
        pinned = self.pinned
        return None if pinned is None else user_message(pinned.blocks)

    @property
    def _front(self) -> tuple[ChatMessage, ...]:
        front = (self._system, self._pin_message, self._checkpoint)
        return tuple(message for message in front if message is not None)

    #### The history

    def leave_out(self, record: MessageRecord, reason: ExcludedReason) -> None:
        """Say of *record*, the next of the transcript, why it is not in the view."""
        self._skip_to(record.order_seq)
        self._exclude(record.order_seq, record.order_seq, 1, reason)

    def add_record(self, record: MessageRecord) -> None:
        """Add one message of the transcript, behind those before it."""
        self._skip_to(record.order_seq)
        before = len(self._body.messages), self._body.messages[-1:]
        self._body.add_record(record)
        if (len(self._body.messages), self._body.messages[-1:]) == before:
            order = record.order_seq
            self._exclude(order, order, 1, "empty_after_formatting")
            return
        placed = _Placed(record.order_seq, before[0], record.role == "user")
        self._placed.append(placed)

    def _skip_to(self, order: int) -> None:
        for each in self._taken_back(self._last_order + 1, order):
            self._exclude(each.first, each.last, each.count, each.reason)
        self._last_order = max(self._last_order, order)

    def _taken_back(self, first: int, order: int) -> Iterator[Excluded]:
        # What was there from *first* to *order*, the next place that is taken. Places
        # are given one after the other, so one that is missing was taken back; one that
        # was taken back may have another message now.
        if first < order:
            count = max(order - first, self._retracted_at(first, order - 1))
            yield Excluded(first, order - 1, count, "retracted")
        if replaced := self._retracted_at(order, order):
            yield Excluded(order, order, replaced, "superseded")

    def _retracted_at(self, first: int, last: int) -> int:
        return bisect_right(self.retracted, last) - bisect_left(self.retracted, first)

    def _exclude(
        self, first: int, last: int, count: int, reason: ExcludedReason
    ) -> None:
        held = self._excluded
        full = len(held) >= MAX_EXCLUDED
        # What was superseded stands beside what is at its place now.
        looked_at = range(0 if full else max(0, len(held) - 2), len(held))
        for at in reversed(looked_at):
            before = held[at]
            if before.reason == reason and (full or before.last == first - 1):
                total = before.count + count
                held[at] = Excluded(before.first, last, total, reason)
                return
        held.append(Excluded(first, last, count, reason))

    @property
    def turns(self) -> tuple[TurnStart, ...]:
        """Where each turn of the history begins, the oldest first."""
        starts = [
            TurnStart(placed.order, placed.index)
            for number, placed in enumerate(self._history)
            if placed.is_user or number == 0
        ]
        return tuple(starts)

    @property
    def front_count(self) -> int:
        """Messages in front of the history."""
        return len(self._front)

    def drop_turns(self, count: int) -> None:
        """Leave the *count* oldest turns of the history out: there is no room."""
        history = self._history
        orders = [turn.order for turn in self.turns][count:]
        keep = [placed for placed in history if orders and placed.order >= orders[0]]
        dropped = history[: len(history) - len(keep)]
        if not dropped:
            return
        at = keep[0].index if keep else self.history_count
        for placed in dropped:
            self._exclude(placed.order, placed.order, 1, "out_of_budget")
        del self._body.messages[:at]
        self._placed = [
            attrs.evolve(placed, index=placed.index - at)
            for placed in self._placed[len(dropped) :]
        ]
        self._asked_at -= at
        if self._resumed_until is not None:
            self._resumed_until -= at

    @property
    def _history(self) -> list[_Placed]:
        return self._placed if self._asked is None else self._placed[:-1]

    @property
    def history_count(self) -> int:
        """Messages of the history, the active turn not counted."""
        body = self._body.messages
        return len(body) if self._asked is None else self._asked_at

    #### The active turn

    def begin_turn(self, message: MessageRecord) -> None:
        """Go on to the turn that *message*, the assistant's, is to hold.

        The newest message of the history is what the user asks now.
        """
        self._turn = message
        last = self._body.messages[-1] if self._body.messages else None
        if isinstance(last, UserMessage) and self._placed and self._placed[-1].is_user:
            self._asked, self._asked_at = last, len(self._body.messages) - 1

    def prefix_user(self, text: str, kind: ContributionKind = "memory_context") -> None:
        """Put *text* before the words of the newest message, if the user's (SKL-07).

        Instructions are never touched: what is remembered is no instruction. Memory
        stands before directives.
        """
        if not text or (self._asked is None and not self._begin_with_newest()):
            return
        self._contributions.append(Contribution(kind, safe_text(text)))
        self._contributions.sort(key=lambda each: each.kind == "directive_context")
        self._renew_asked()

    def drop_contributions(self, kind: ContributionKind) -> None:
        """Leave what was contributed as *kind* out: there is no room."""
        kept = [each for each in self._contributions if each.kind != kind]
        if len(kept) < len(self._contributions):
            self._contributions = kept
            self._renew_asked()

    def _begin_with_newest(self) -> bool:
        last = self._body.messages[-1] if self._body.messages else None
        if isinstance(last, UserMessage):
            self._asked, self._asked_at = last, len(self._body.messages) - 1
        return self._asked is not None

    def _renew_asked(self) -> None:
        assert self._asked is not None
        texts = [TextPart(each.text) for each in self._contributions]
        asked = UserMessage((*texts, *self._asked.parts))
        self._body.messages[self._asked_at] = asked

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """What stands before the words of the user."""
        return tuple(self._contributions)

    def add_resumed(self, blocks: Sequence[Block]) -> None:
        """Add the rounds of the turn that runs before this one have made."""
        self.add_rounds(blocks)
        self._resumed_until = len(self._body.messages)

    def add_rounds(
        self, blocks: Sequence[Block], *, keep_reasoning: bool = True
    ) -> None:
        """Add the rounds that *blocks* of an assistant message make up."""
        self._body.add_rounds(blocks, keep_reasoning=keep_reasoning)

    #### Made smaller

    def shorten(self, messages: Sequence[ChatMessage]) -> None:
        """Take *messages* for its own, which differ from them in results of tools."""
        front = self.front_count
        assert len(messages) == front + len(self._body.messages)
        self._body.messages[:] = messages[front:]

    def begin_from(self, base: ViewBuilder, message: MessageRecord) -> None:
        """Begin the turn that *message* is to hold, with the history of *base*.

        Instructions stay; what providers have refused is what *base* knows of.
        """
        self._rejected = base._rejected
        self.begin_turn(message)
        self.rebase(base, ())

    def rebase(self, base: ViewBuilder, blocks: Sequence[Block]) -> None:
        """Go on from *base*, which begins elsewhere; the turn is the same (CTX-16).

        *blocks* are what the turn's message holds by now. Instructions, contributions
        and what was left out stay.
        """
        fresh = base.fork()
        fresh._system, fresh.skills = self._system, self.skills
        fresh.unread = self.unread
        fresh._rejected[:] = self._rejected
        inherited = set[str]()
        if self._turn is not None:
            fresh.begin_turn(self._turn)
            inherited = {block.id for block in self._turn.blocks}
        for each in self._contributions:
            fresh.prefix_user(each.text, each.kind)
        fresh.add_resumed([block for block in blocks if block.id in inherited])
        fresh.add_rounds([block for block in blocks if block.id not in inherited])
        for field in attrs.fields(ViewBuilder):
            setattr(self, field.name, getattr(fresh, field.name))

    #### What it is made of

    @property
    def excluded(self) -> tuple[Excluded, ...]:
        """The messages of the transcript that are not in it; the active one too."""
        return (*self._excluded, *self._behind_history())

    def _behind_history(self) -> Iterator[Excluded]:
        turn, first = self._turn, self._last_order + 1
        has_rounds = len(self._body.messages) > self._asked_at + 1
        shown = self._asked is not None and has_rounds
        places = [] if turn is None else [turn.order_seq]
        for order in (*places, *self.unread()):
            yield from self._taken_back(first, order)
            if not (shown and order in places):
                yield Excluded(order, order, 1, "pending_not_context_history")
            first = order + 1
        rest = self.retracted[bisect_left(self.retracted, first) :]
        if rest:
            yield Excluded(first, rest[-1], len(rest), "retracted")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The messages, part by part in their order, and why each is there."""
        parts = [*self._front_parts(), *self._turn_parts()]
        return tuple(part for part in parts if part.count or part.digest)

    def _front_parts(self) -> list[Part]:
        parts = list[Part]()
        if self._system is not None:
            parts.append(Part("system_prompt", "system", 0, 1))
        if (pinned := self.pinned) is not None and self._pin_message is not None:
            orders = pinned.order_seq, pinned.order_seq
            at = len(parts)
            parts.append(Part("pinned_first_user", "user", at, 1, pinned.id, orders))
        at = len(parts)
        if self._checkpoint is not None:
            parts += [
                Part(each.kind, "user", at, int(not number), digest=each.digest)
                for number, each in enumerate(self._sections)
            ]
        history, at = self._history, self.front_count
        if history:
            orders = history[0].order, history[-1].order
            count = self.history_count
            parts.append(Part("selected_history", "mixed", at, count, orders=orders))
        return parts

    def _turn_parts(self) -> list[Part]:
        if self._asked is None:
            return []
        at, end = self.front_count + self._asked_at, len(self._body.messages)
        order = self._placed[-1].order if self._placed else 0
        rounds = self._asked_at + 1
        resumed = max(rounds, self._resumed_until or 0)
        turn = self._turn
        of = (turn.id, (turn.order_seq, turn.order_seq)) if turn else (None, None)
        return [
            Part("new_user_input", "user", at, 1, orders=(order, order)),
            *(
                Part(each.kind, "user", at, 0, digest=sha256_hex(each.text))
                for each in self._contributions
            ),
            Part("resume_target", "mixed", at + 1, resumed - rounds, *of),
            Part(
                "tool_loop_message",
                "mixed",
                at + 1 + resumed - rounds,
                end - resumed,
                *of,
            ),
        ]
