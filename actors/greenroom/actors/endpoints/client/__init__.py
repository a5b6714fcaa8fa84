"""A client of the gateway: typed requests, and sessions followed across connections.

A connection may be lost at any moment and nothing is: requests that may be sent again
are, and whoever follows a session goes on after the last event that it was handed. What
a gateway sends is held to the protocol's types and bounds like anything from outside.
"""

from __future__ import annotations

from ._address import DEFAULT_URL as DEFAULT_URL, Address as Address
from ._attachment import Attachment as Attachment
from ._client import Client as Client, open_client as open_client
from ._errors import (
    AddressError as AddressError,
    CallError as CallError,
    ConnectionLostError as ConnectionLostError,
    GatewayClosedError as GatewayClosedError,
    GatewayProtocolError as GatewayProtocolError,
    GatewayRefusedError as GatewayRefusedError,
    SilentGatewayError as SilentGatewayError,
    UnreachableGatewayError as UnreachableGatewayError,
)
