"""The front door for programs that use the engine of a gateway.

    async with open_client("http://127.0.0.1:8427/") as client:
        page = await client.call("session/list", ListSessions(), SessionList)
        async with client.attach(page.sessions[0].id) as attachment:
            async for item in attachment:
                print(item)

The types of requests and results are those of `greenroom.protocol.gateway`. A client
stays connected by itself; see docs/guides/gateway.md.
"""

from __future__ import annotations

from greenroom.actors.endpoints.client import (
    DEFAULT_URL as DEFAULT_URL,
    AddressError as AddressError,
    Attachment as Attachment,
    CallError as CallError,
    Client as Client,
    ConnectionLostError as ConnectionLostError,
    GatewayClosedError as GatewayClosedError,
    GatewayProtocolError as GatewayProtocolError,
    GatewayRefusedError as GatewayRefusedError,
    SilentGatewayError as SilentGatewayError,
    UnreachableGatewayError as UnreachableGatewayError,
    open_client as open_client,
)
