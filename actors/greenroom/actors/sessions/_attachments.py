"""Whether what the user attached can be sent, before a turn begins (PIN-12).

A provider that can say which of its models read images does so; of all others it is
taken that they do. What can't be sent is for the user to decide: try again, after a
change of the model, or go on without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from greenroom.protocol import ImagePart, InputRefusedError, Parts, SessionSettings

Attachments = Callable[[Parts, SessionSettings], tuple[str, ...]]
"""Returns why these parts need a decision of the user; empty: they can be sent."""


def all_can_be_sent(_parts: Parts, _settings: SessionSettings) -> tuple[str, ...]:
    """Return no reason: nothing needs a decision."""
    return ()


@runtime_checkable
class ImageReader(Protocol):
    """A provider that knows which of its models read images."""

    def reads_images(self, model: str) -> bool:
        """Whether *model* can be sent images."""
        ...


def image_reasons(
    parts: Parts, provider: object, settings: SessionSettings
) -> tuple[str, ...]:
    """Return why *provider* can't be sent *parts*, for a person."""
    images = sum(isinstance(part, ImagePart) for part in parts)
    if not images or not isinstance(provider, ImageReader):
        return ()
    if provider.reads_images(settings.model):
        return ()
    what = "an image is" if images == 1 else f"{images} images are"
    return (f"{what} attached, and the model {settings.model!r} reads none",)


def without_images(input_id: str, parts: Parts) -> Parts:
    """Return what is left of *parts* without their images.

    Raises:
        InputRefusedError: nothing is.
    """
    left = tuple(part for part in parts if not isinstance(part, ImagePart))
    if not any(part.text.strip() for part in left):
        raise InputRefusedError(
            "nothing_left",
            f"input {input_id[:80]!r} is nothing but images",
            hint="choose a model that reads images and try again, or delete the input",
        )
    return left
