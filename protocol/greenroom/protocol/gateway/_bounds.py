"""What bounds the fields of requests, in one place."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from .._messages import ImagePart, TextPart

MAX_FRAME_BYTES: Final = 4 << 20
"""A frame, each way: what a browser takes in one piece without a stutter, and far
above what a request needs. Larger content is cut and read in pieces."""

MAX_PARTS: Final = 64
"""Parts of one prompt."""

MAX_PAGE: Final = 100
"""Rows of one page, of anything."""

MAX_SLICE: Final = 500_000
"""Characters of one slice of a block. At most 6 bytes each as JSON, so a frame holds
it."""

Id = Annotated[str, Meta(min_length=1, max_length=200)]
"""An identity, whoever made it."""

CommandId = Annotated[str, Meta(min_length=1, max_length=200)]
"""Made by the client, so that sending again is safe."""

ShortText = Annotated[str, Meta(max_length=2_000)]
LongText = Annotated[str, Meta(max_length=200_000)]
FilePath = Annotated[str, Meta(min_length=1, max_length=4_096)]
Count = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Place = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""A sequence number, or another place to count from."""

Content = str | Annotated[tuple[TextPart | ImagePart, ...], Meta(max_length=MAX_PARTS)]
"""What the user says."""
