"""Which request of a turn is made how (CTX-06)."""

from __future__ import annotations

from typing import Final, Literal

import attrs

TaskType = Literal["chat", "resume", "tool_loop"]
ViewOrigin = Literal["chat", "resume", "tool_loop", "context_recovery"]
Selection = Literal["requested", "default", "fallback_default"]
"""Why a policy is the one: it was named; none was; one was that does not exist."""

ViewPolicy = Literal[
    "cache_aware_context_v1", "cache_aware_context_v2", "legacy_context_v1"
]
ShadowPolicy = Literal[
    "resume_shadow_v1",
    "tool_loop_shadow_v1",
    "context_pressure_recovery_shadow_v1",
    "legacy_shadow_v1",
]
"""How a request is made that follows the view of its turn, instead of making one."""

DEFAULT_POLICY: Final[ViewPolicy] = "cache_aware_context_v2"
POLICY_VERSIONS: Final[dict[str, int]] = {
    "cache_aware_context_v1": 1,
    "cache_aware_context_v2": 2,
    "legacy_context_v1": 1,
}


@attrs.frozen
class Chosen:
    """The policy of a turn's view, and why it is that one."""

    policy: ViewPolicy
    selection: Selection

    @property
    def pins(self) -> bool:
        """Whether the user's first message stays in front (CTX-32)."""
        return self.policy == "cache_aware_context_v2"


@attrs.frozen
class RequestPolicy:
    """What a manifest says of how its request was made."""

    task: TaskType
    policy: ViewPolicy | ShadowPolicy
    version: int
    selection: Selection | None


def choose_policy(requested: str | None = None) -> Chosen:
    """Return the policy that is *requested*, else the default one."""
    match requested:
        case "cache_aware_context_v1" | "cache_aware_context_v2" | "legacy_context_v1":
            return Chosen(requested, "requested")
        case None:
            return Chosen(DEFAULT_POLICY, "default")
        case _:
            return Chosen(DEFAULT_POLICY, "fallback_default")


def request_policy(chosen: Chosen, origin: ViewOrigin) -> RequestPolicy:
    """Return how a request of *origin* is made in a turn whose view is *chosen*'s."""
    version = POLICY_VERSIONS[chosen.policy]
    match origin:
        case "chat" | "resume":
            return RequestPolicy(origin, chosen.policy, version, chosen.selection)
        case "tool_loop":
            shadow: ShadowPolicy = "tool_loop_shadow_v1"
            return RequestPolicy("tool_loop", shadow, 1, chosen.selection)
        case "context_recovery":
            shadow = "context_pressure_recovery_shadow_v1"
            return RequestPolicy("tool_loop", shadow, 1, None)
