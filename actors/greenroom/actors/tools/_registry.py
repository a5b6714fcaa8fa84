"""Which tools there are, by scope: agent, membership, generation, global.

The nearest scope wins. A contribution is owned by the context that made it: the
handle it gets removes exactly that contribution, whatever came after it. The global
layer is written at start-up only; `ToolRegistry.seal` ends that. A run does not look
here: it takes a `ToolSet`, which stays as it is, when it starts (TOL-09).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType, TracebackType
from typing import Final, final
from weakref import WeakKeyDictionary

import attrs

from greenroom.protocol import ToolDefinition

from ._excerpt import one_line
from ._port import Tool, ToolRefused

_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
"""What every provider takes as a function's name."""

RESERVED_NAMES: Final = frozenset(
    ("tape_anchors", "tape_context", "tape_handoff", "tape_info", "tape_search")
)
"""A tool that somebody contributes under one of these names is not offered (TAP-15)."""

_MAX_DESCRIPTION: Final = 16_384
_MAX_NAMES_SHOWN: Final = 50


class ScopeKind(IntEnum):
    """The layers, farthest first."""

    GLOBAL = 0
    GENERATION = 1
    MEMBERSHIP = 2
    AGENT = 3


@final
@attrs.frozen(eq=False, repr=False)
class Scope:
    """One context that contributes; two scopes are the same only if identical."""

    kind: ScopeKind
    label: str
    parent: Scope | None = None

    def __attrs_post_init__(self) -> None:
        if (self.parent is None) != (self.kind is ScopeKind.GLOBAL):
            raise ValueError("every scope but the global one has a parent")
        if self.parent is not None and self.parent.kind >= self.kind:
            raise ValueError(
                f"{self.parent!r} can't be the parent of a {self.kind.name.lower()}"
                " scope; scopes nest as global, generation, membership, agent"
            )

    def __repr__(self) -> str:
        return f"<Scope {self.kind.name.lower()} {self.label!r}>"

    def chain(self) -> tuple[Scope, ...]:
        """Return this scope and those around it, nearest first."""
        scope: Scope | None = self
        found: list[Scope] = []
        while scope is not None:
            found.append(scope)
            scope = scope.parent
        return tuple(found)


@final
@attrs.define(eq=False)
class Contribution:
    """What one context contributed; leaving it as a context manager undoes it."""

    _layer: dict[str, Tool] = attrs.field(alias="layer")
    _tools: tuple[Tool, ...] = attrs.field(alias="tools")

    def undo(self) -> None:
        """Remove these tools, and nothing else. Doing it again does nothing."""
        for tool in self._tools:
            del self._layer[tool.definition.name]
        self._tools = ()

    def __enter__(self) -> Contribution:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


@final
@attrs.frozen
class ToolSet:
    """The tools of one run: made once, never changed."""

    definitions: tuple[ToolDefinition, ...]
    """What the model is offered, by name."""
    _tools: Mapping[str, Tool] = attrs.field(alias="tools")
    _disabled: frozenset[str] = attrs.field(alias="disabled")

    def without(self, names: Iterable[str]) -> ToolSet:
        """Return the set with the tools of these *names* disabled too."""
        off = frozenset(names) & self._tools.keys()
        if not off:
            return self
        kept = {name: tool for name, tool in self._tools.items() if name not in off}
        return ToolSet(
            definitions=tuple(tool.definition for tool in kept.values()),
            tools=MappingProxyType(kept),
            disabled=self._disabled | off,
        )

    def including(self, *tools: Tool) -> ToolSet:
        """Return the set with *tools* too; a name that is taken stays so.

        So do one that is disabled or reserved.
        """
        known = self._tools.keys() | self._disabled | RESERVED_NAMES
        added = {t.definition.name: t for t in tools if t.definition.name not in known}
        if not added:
            return self
        every = dict(sorted((dict(self._tools) | added).items()))
        return ToolSet(
            definitions=tuple(tool.definition for tool in every.values()),
            tools=MappingProxyType(every),
            disabled=self._disabled,
        )

    def find(self, name: str) -> Tool:
        """Return the tool called *name*.

        Raises:
            ToolRefused: there is none, or it is disabled (TOL-12).
        """
        tool = self._tools.get(name)
        if tool is not None:
            return tool
        if name in self._disabled:
            raise ToolRefused(f"the tool {name!r} is disabled here; go on without it")
        if not name:
            raise ToolRefused("the call names no tool")
        known = ", ".join(list(self._tools)[:_MAX_NAMES_SHOWN]) or "none"
        raise ToolRefused(
            f"there is no tool {one_line(name, 64)!r}; there are: {known}"
        )


@final
@attrs.define(eq=False)
class ToolRegistry:
    """The layers. Used from one task at a time, and never waits."""

    root: Scope = attrs.field(
        factory=lambda: Scope(ScopeKind.GLOBAL, "global"), init=False
    )
    """The global scope, parent of all others."""
    # A layer goes with its scope; nobody has to remember to remove it.
    _layers: WeakKeyDictionary[Scope, dict[str, Tool]] = attrs.field(
        factory=WeakKeyDictionary[Scope, dict[str, Tool]], init=False
    )
    _reserved: dict[str, Tool] = attrs.field(factory=dict[str, Tool], init=False)
    _sealed: bool = attrs.field(default=False, init=False)

    def contribute(self, *tools: Tool, scope: Scope | None = None) -> Contribution:
        """Add *tools* to the layer of *scope* (default: global), all or none.

        Raises:
            ValueError: a definition is malformed, or its name is taken in the layer.
            RuntimeError: the layer is the global one, and sealed.
        """
        scope = scope or self.root
        self._check(scope)
        if self._sealed and scope is self.root:
            raise RuntimeError(
                "the global layer is sealed; contribute to a narrower scope"
            )
        added: dict[str, Tool] = {}
        layer = self._layers.get(scope, {})
        for tool in tools:
            name = tool.definition.name
            check_definition(tool.definition)
            if name in layer or name in added:
                raise ValueError(f"tool {name!r} is already contributed by {scope!r}")
            added[name] = tool
        layer = self._layers.setdefault(scope, layer)
        layer.update(added)
        return Contribution(layer, tools)

    def reserve(self, *tools: Tool) -> None:
        """Offer *tools* under names of `RESERVED_NAMES`, in every scope (TAP-15).

        Raises:
            ValueError: a name is not reserved, or a definition is malformed.
        """
        for tool in tools:
            check_definition(tool.definition)
            if tool.definition.name not in RESERVED_NAMES:
                raise ValueError(f"the name {tool.definition.name!r} is not reserved")
        self._reserved = {tool.definition.name: tool for tool in tools}

    def seal(self) -> None:
        """Close the global layer for further contributions; undoing stays possible."""
        self._sealed = True

    def lookup(self, name: str, scope: Scope | None = None) -> Tool | None:
        """Return the nearest tool called *name* as seen from *scope*."""
        return self._view(scope).get(name)

    def definitions(self, scope: Scope | None = None) -> tuple[ToolDefinition, ...]:
        """Return the definitions as seen from *scope*, ordered by name."""
        return self.snapshot(scope).definitions

    def snapshot(
        self, scope: Scope | None = None, *, disabled: Iterable[str] = ()
    ) -> ToolSet:
        """Return the tools as seen from *scope*, but the *disabled* ones, for a run."""
        off = frozenset(disabled)
        view = self._view(scope)
        # By name: the order of contributions must not reach the prompt.
        tools = {name: view[name] for name in sorted(view) if name not in off}
        return ToolSet(
            definitions=tuple(tool.definition for tool in tools.values()),
            tools=MappingProxyType(tools),
            disabled=off & view.keys(),
        )

    def _view(self, scope: Scope | None) -> dict[str, Tool]:
        scope = scope or self.root
        self._check(scope)
        view: dict[str, Tool] = {}
        for layer in reversed(scope.chain()):
            view.update(self._layers.get(layer, {}))
        free = {n: tool for n, tool in view.items() if n not in RESERVED_NAMES}
        return free | self._reserved

    def _check(self, scope: Scope) -> None:
        if scope.chain()[-1] is not self.root:
            raise ValueError(f"{scope!r} belongs to another registry")


def check_definition(definition: ToolDefinition) -> None:
    """Refuse a definition that no provider would take.

    Raises:
        ValueError: its name, description or schema is out of bounds.
    """
    if not _NAME.fullmatch(definition.name):
        raise ValueError(
            f"tool name {definition.name[:80]!r} must be 1 to 64 letters, digits,"
            " underscores or hyphens"
        )
    if len(definition.description) > _MAX_DESCRIPTION:
        raise ValueError(
            f"the description of tool {definition.name!r} has"
            f" {len(definition.description)} characters, more than {_MAX_DESCRIPTION}"
        )
    if definition.parameters.get("type") != "object":
        raise ValueError(f"the schema of tool {definition.name!r} must be an object's")
