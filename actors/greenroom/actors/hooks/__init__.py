"""Lifecycle hooks: programs and addresses that are told what happens (SKL-10)."""

from __future__ import annotations

from ._command import CommandHook as CommandHook
from ._hooks import (
    MAX_WAITING as MAX_WAITING,
    Hook as Hook,
    Hooks as Hooks,
    no_hooks as no_hooks,
)
from ._webhook import Webhook as Webhook, check_address as check_address
