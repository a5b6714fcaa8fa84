"""Content blocks: what prompts and messages are made of."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .._lenient import DEFAULT_ON_ERROR, SKIP_INVALID_ITEMS


class Annotations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Whom a block is for, and how much it matters."""

    audience: Annotated[
        tuple[Literal["assistant", "user"], ...],
        DEFAULT_ON_ERROR,
        SKIP_INVALID_ITEMS,
    ] = ()
    last_modified: Annotated[str | None, DEFAULT_ON_ERROR] = None
    priority: Annotated[float | None, DEFAULT_ON_ERROR] = None


class TextContent(
    msgspec.Struct, frozen=True, tag_field="type", tag="text", omit_defaults=True
):
    """Text, in Markdown as a rule."""

    text: str
    annotations: Annotated[Annotations | None, DEFAULT_ON_ERROR] = None


class ImageContent(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="image",
    rename="camel",
    omit_defaults=True,
):
    """An image, base64."""

    mime_type: str
    data: str
    uri: Annotated[str | None, DEFAULT_ON_ERROR] = None
    annotations: Annotated[Annotations | None, DEFAULT_ON_ERROR] = None


class AudioContent(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="audio",
    rename="camel",
    omit_defaults=True,
):
    """Sound, base64."""

    mime_type: str
    data: str
    annotations: Annotated[Annotations | None, DEFAULT_ON_ERROR] = None


class ResourceLink(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="resource_link",
    rename="camel",
    omit_defaults=True,
):
    """Something that the agent may look at."""

    uri: str
    name: str
    mime_type: Annotated[str | None, DEFAULT_ON_ERROR] = None
    title: Annotated[str | None, DEFAULT_ON_ERROR] = None
    description: Annotated[str | None, DEFAULT_ON_ERROR] = None
    size: Annotated[int | None, DEFAULT_ON_ERROR] = None
    annotations: Annotated[Annotations | None, DEFAULT_ON_ERROR] = None


class ResourceContents(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The content of a resource: ``text``, or base64 in ``blob``."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: Annotated[str | None, DEFAULT_ON_ERROR] = None

    def __post_init__(self) -> None:
        """Refuse what is neither."""
        if self.text is None and self.blob is None:
            raise ValueError("a resource needs text or blob")


class EmbeddedResource(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="resource",
    omit_defaults=True,
):
    """A resource that came along."""

    resource: ResourceContents
    annotations: Annotated[Annotations | None, DEFAULT_ON_ERROR] = None


ContentBlock = (
    TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
)
