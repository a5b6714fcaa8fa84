"""The front door for those who let others use their engine over the network.

    async with open_engine(provider=my_provider) as engine:
        async with open_gateway(engine, port=0) as gateway:
            print(gateway.url)
            await trio.sleep_forever()

Any ACP client that speaks WebSocket connects to ``/acp``; a browser gets the console
at ``/``. See docs/guides/gateway.md for the protocol.
"""

from __future__ import annotations

from greenroom.actors.endpoints.gateway import (
    DEFAULT_PORT as DEFAULT_PORT,
    AccessError as AccessError,
    Gateway as Gateway,
    Token as Token,
    listen as listen,
    open_gateway as open_gateway,
    tokens_of as tokens_of,
)
