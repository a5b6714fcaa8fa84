"""Clients of a gateway in a process of their own, so that they cost the server nothing.

    python gateway_clients.py PORT COUNT STALLED < SESSION_IDS

Connects COUNT clients, attaches each to one of the sessions (one id a line; none: to
nothing), says ``ready`` and reads whatever comes until its input ends; the first
STALLED of them never read again. Then it prints JSON: the bytes that came, and how old
the stamps in them were, in milliseconds. A stamp is ``@`` and monotonic nanoseconds.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import sys
import time
from typing import Final

HEAD: Final = (
    b"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
STAMP: Final = re.compile(rb"@(\d+)@")
STAMPED_CLIENTS: Final = 20
"""Whose stamps are looked at: enough for a percentile, and cheap."""


def masked(text: bytes) -> bytes:
    """Return *text* as a frame of a client, with a mask of zeros."""
    assert len(text) < 1 << 16
    if len(text) < 126:
        return bytes((0x81, 0x80 | len(text))) + bytes(4) + text
    return b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text


def connect(port: int, session: str | None) -> socket.socket:
    """Return a socket after the handshake, and after the answer to attaching."""
    peer = socket.create_connection(("127.0.0.1", port))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(HEAD)
    got = b""
    while b"\r\n\r\n" not in got:
        got += peer.recv(4_096)
    params = b"{}"
    method = b"_greenroom/session/list"
    if session is not None:
        method = b"_greenroom/session/attach"
        params = b'{"sessionId":"' + session.encode() + b'"}'
    request = b'{"jsonrpc":"2.0","id":1,"method":"' + method + b'","params":' + params
    peer.sendall(masked(request + b"}"))
    got = b""
    while b'"result"' not in got:
        part = peer.recv(65_536)
        assert part, "the server has closed"
        got += part
    peer.setblocking(False)
    return peer


def main() -> None:
    """Be clients."""
    port, count, stalled = map(int, sys.argv[1:4])
    ids = json.loads(sys.stdin.readline()) or [None]
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ, None)
    peers = [connect(port, ids[number % len(ids)]) for number in range(count)]
    for number, peer in enumerate(peers):
        if number >= stalled:
            selector.register(peer, selectors.EVENT_READ, number)
    print("ready", flush=True)
    total, ages = 0, list[float]()
    while True:
        for key, _ in selector.select():
            if key.data is None:
                os.read(0, 1)
                ages.sort()
                p99 = ages[int(len(ages) * 0.99)] if ages else 0.0
                print(json.dumps({"bytes": total, "p99_ms": p99}), flush=True)
                return
            try:
                data = key.fileobj.recv(262_144)  # pyright: ignore[reportAttributeAccessIssue]
            except OSError:
                data = b""
            if not data:
                selector.unregister(key.fileobj)
            total += len(data)
            if key.data < stalled + STAMPED_CLIENTS:
                now = time.monotonic_ns()
                ages += [(now - int(at)) / 1e6 for at in STAMP.findall(data)]


main()
