"""What a turn and a session may use, and what happens when it is used up.

Pure arithmetic. A limit that is reached never ends anything by itself: the user is
asked, and says whether it is raised, by an amount that the question states, or whether
the turn stops. What is not known is never zero: a limit that can't be watched (a
provider that tells no usage, a model without a price) asks once, says so, and lets the
user go on without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import attrs
import msgspec

from ._counters import MAX_SAFE_INTEGER
from ._messages import (
    ActionBlock,
    Block,
    BudgetExcess,
    MessageMetadata,
    QuestionOption,
    Usage,
)

BudgetKind = Literal["tokens", "money", "seconds"]
BudgetScope = Literal["turn", "session"]

RAISE: Final = "raise"
STOP: Final = "stop"

_KINDS: Final[tuple[BudgetKind, ...]] = ("tokens", "money", "seconds")
_MOST: Final = float(MAX_SAFE_INTEGER)
_Amount = Annotated[float, msgspec.Meta(ge=1e-6, le=_MOST)]


class Budget(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """Limits; what is absent has none."""

    tokens: Annotated[int, msgspec.Meta(gt=0, le=MAX_SAFE_INTEGER)] | None = None
    """Of all requests, input and output."""
    money: _Amount | None = None
    """US dollars."""
    seconds: _Amount | None = None
    """Of working; waiting for an answer does not count."""


class Price(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    """Absent: as much as other input."""
    cache_write: float | None = None
    """Absent: as much as other input."""


@attrs.frozen
class Spent:
    """What was used, as far as it is known."""

    tokens: int = 0
    money: float = 0.0
    seconds: float = 0.0
    unknown: frozenset[BudgetKind] = frozenset()
    """What is a lower bound only."""

    def plus(self, other: Spent) -> Spent:
        """Return the sum."""
        return Spent(
            self.tokens + other.tokens,
            self.money + other.money,
            self.seconds + other.seconds,
            self.unknown | other.unknown,
        )

    def of(self, kind: BudgetKind) -> float:
        """Return what is known to be used of *kind*."""
        amounts: dict[BudgetKind, float] = {
            "tokens": self.tokens,
            "money": self.money,
            "seconds": self.seconds,
        }
        return amounts[kind]


@attrs.frozen
class Account:
    """What the earlier turns of a session used, and what the user added for it."""

    spent: Spent = Spent()
    raised: Mapping[BudgetKind, float] = attrs.field(factory=dict[BudgetKind, float])

    def after(self, metadata: MessageMetadata, blocks: Iterable[Block]) -> Account:
        """Return the account after one more turn."""
        more = raises(blocks, "session")
        raised: dict[BudgetKind, float] = {
            kind: self.raised.get(kind, 0.0) + more.get(kind, 0.0) for kind in _KINDS
        }
        return Account(self.spent.plus(spent_of(metadata)), raised)


def cost_of(usage: Usage, price: Price) -> float:
    """Return what *usage* costs, in US dollars."""
    read, write = usage.cache_read or 0, usage.cache_write or 0
    fresh = max(0, usage.input - read - write)
    read_price = price.input if price.cache_read is None else price.cache_read
    write_price = price.input if price.cache_write is None else price.cache_write
    total = (
        fresh * price.input
        + read * read_price
        + write * write_price
        + usage.output * price.output
    )
    return total / 1_000_000


def spent_on(tokens: int | None, cost: float | None) -> Spent:
    """Return what a request used; ``None`` where it is not known."""
    unknown: set[BudgetKind] = set()
    if tokens is None:
        unknown.add("tokens")
    if cost is None:
        unknown.add("money")
    return Spent(tokens or 0, cost or 0.0, unknown=frozenset(unknown))


def spent_of(metadata: MessageMetadata) -> Spent:
    """Return what a turn used. Without a request nothing is unknown."""
    asked = metadata.request_seq > 0
    unknown: set[BudgetKind] = set()
    if asked and metadata.total_tokens is None:
        unknown.add("tokens")
    if asked and metadata.cost is None:
        unknown.add("money")
    return Spent(
        metadata.total_tokens or 0,
        metadata.cost or 0.0,
        metadata.generation_time or 0.0,
        frozenset(unknown),
    )


def raises(blocks: Iterable[Block], scope: BudgetScope) -> dict[BudgetKind, float]:
    """Return what the user added to the limits of *scope*, by kind."""
    raised: dict[BudgetKind, float] = {}
    for block in blocks:
        if isinstance(block, ActionBlock) and block.answer == RAISE:
            excess = block.excess
            if excess is not None and excess.scope == scope:
                added = raised.get(excess.kind, 0.0) + excess.raise_by
                raised[excess.kind] = added
    return raised


def find_excess(
    budget: Budget | None,
    scope: BudgetScope,
    spent: Spent,
    raised: Mapping[BudgetKind, float],
) -> BudgetExcess | None:
    """Return the first limit of *budget* that is reached or can't be watched."""
    for kind in _KINDS if budget is not None else ():
        limit: float | None = getattr(budget, kind)
        if limit is None:
            continue
        added = raised.get(kind, 0.0)
        used, allowed = spent.of(kind), limit + added
        if used >= allowed:
            return BudgetExcess(
                scope=scope,
                kind=kind,
                limit=allowed,
                spent=used,
                raise_by=_step(limit, allowed, used),
            )
        if kind in spent.unknown and not added:
            return BudgetExcess(
                scope=scope, kind=kind, limit=allowed, spent=None, raise_by=limit
            )
    return None


# The limit again, doubled until it is above what was used, so that the question is not
# asked again at once.
def _step(limit: float, allowed: float, used: float) -> float:
    step = limit
    while allowed + step <= used:
        step *= 2
    return step


def amount(kind: BudgetKind, value: float | None) -> str:
    """Return *value* for a person."""
    if value is None:
        return "unknown"
    match kind:
        case "tokens":
            return f"{value:,.0f} tokens"
        case "money":
            return f"${value:,.4f}" if value < 1 else f"${value:,.2f}"
        case "seconds":
            return f"{value:,.1f} s"


def question_of(excess: BudgetExcess) -> tuple[str, str, tuple[QuestionOption, ...]]:
    """Return title, detail and options of the question about *excess*."""
    more = amount(excess.kind, excess.raise_by)
    limit = amount(excess.kind, excess.limit)
    if excess.spent is None:
        title = f"The {excess.kind} of this {excess.scope} can't be watched"
        detail = (
            f"What was used of {limit} is unknown: the provider told no usage, or the "
            "model has no price here. Shall it go on without this limit?"
        )
        return title, detail, (QuestionOption(RAISE, "go on"), QuestionOption(STOP))
    title = f"The budget of this {excess.scope} is used up"
    used = amount(excess.kind, excess.spent)
    detail = f"{used} of {limit} are used. Shall it go on with {more} more?"
    return title, detail, (QuestionOption(RAISE, f"by {more}"), QuestionOption(STOP))
