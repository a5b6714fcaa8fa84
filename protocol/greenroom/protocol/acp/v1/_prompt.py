"""From the content blocks of a prompt to what a session takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from ..._errors import RemoteProtocolError
from ..._messages import ImagePart, TextPart
from ._content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

MAX_NAME_CHARS: Final = 4_096


class ContentNotSupportedError(RemoteProtocolError):
    """A prompt holds what this agent did not offer to take."""

    code = "content_not_supported"


def parts_of(blocks: Iterable[ContentBlock]) -> tuple[TextPart | ImagePart, ...]:
    """Return what the model is shown of a prompt.

    A link is named, a resource is quoted with its address, and binary ones that are
    no image are only mentioned.

    Raises:
        ContentNotSupportedError: there is sound in it.
    """
    return tuple(_part(block) for block in blocks)


def _part(block: ContentBlock) -> TextPart | ImagePart:
    match block:
        case TextContent(text=text):
            return TextPart(text)
        case ImageContent(mime_type=media_type, data=data):
            return ImagePart(media_type, data)
        case ResourceLink(uri=uri, name=name):
            return TextPart(f"[{_one_line(name)}]({_one_line(uri)})")
        case EmbeddedResource(resource=resource):
            return _resource(resource)
        case AudioContent():
            raise ContentNotSupportedError(
                "sound in a prompt is not supported; send text, images or resources"
            )
        case _:
            assert_never(block)


def _resource(resource: ResourceContents) -> TextPart | ImagePart:
    media_type = resource.mime_type or ""
    if resource.text is None and media_type.startswith("image/"):
        return ImagePart(media_type, resource.blob or "")
    text = resource.text
    if text is None:
        text = f"(binary, {_one_line(media_type) or 'of unknown type'}; not shown)"
    uri = _one_line(resource.uri).replace('"', "%22")
    return TextPart(f'<resource uri="{uri}">\n{text}\n</resource>')


def _one_line(text: str) -> str:
    return " ".join(text[:MAX_NAME_CHARS].split())
