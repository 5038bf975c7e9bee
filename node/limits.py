"""Every size, number and time of the node's doors that a caller could try to abuse, each with its reason.

What a gossip frame may carry is in overlay/core/limits.py, what a request may ask for in request_builder.py.
"""

from __future__ import annotations

# -- both doors -----------------------------------------------------------------------------------

MAX_BODY_BYTES = 4 << 20
"""Of one HTTP body or gRPC message; gRPC's own default, stated. A prompt of a million tokens fits."""

CALLS_PER_S = 1_000.0
"""Of one caller: a third of what this process can answer, so that no one caller silences gossip."""

CALLS_AT_ONCE = 2_000.0
"""A herd of requests that comes after a pause."""

MAX_LIVE_CALLS = 1_024
"""Of one caller at the same time: as many as the engine lets wait."""

MAX_CALLERS = 4_096
"""Callers whose calls are counted at once; each costs about 300 bytes."""

# -- gRPC -----------------------------------------------------------------------------------------

MAX_GRPC_CONNECTIONS = 2_048
"""At 165 KiB each (measured) 330 MiB. A mesh of 1,000 nodes needs one a node and 320 for gossip."""

MAX_CONCURRENT_STREAMS = 1_024
"""Of one connection; no use in more than MAX_LIVE_CALLS."""

MAX_CONCURRENT_RPCS = 8_192
"""Of all callers together; each costs a task and its buffers, about 20 KiB."""

MAX_METADATA_BYTES = 16 << 10
"""The trailers with a BUSY have 200 bytes."""

GRPC_HANDSHAKE_MS = 10_000
"""From the connection to the client's HTTP/2 settings; a satellite link needs under 4 s."""

# -- HTTP -----------------------------------------------------------------------------------------

MAX_HTTP_CONNECTIONS = 512
"""Those in the TLS handshake included. One more, and the one that has said nothing for longest gives way."""

HTTP_HANDSHAKE_S = 10.0
"""For TLS; asyncio's own default is a minute."""

MAX_HEADER_BYTES = 64 << 10
"""Request line and headers; browsers send under 8 KiB, proxies add a little."""

HEADER_S = 10.0
"""From the connection, or the end of the last answer, to the end of the headers. They fit one packet."""

BODY_S = 60.0
"""For the whole body: 70 KB/s at the largest."""

KEEP_ALIVE_S = 5
"""Between the end of one answer and the start of the next request; uvicorn's default, stated."""

STALL_S = 60.0
"""For a client to take what waits to be sent, once that fills the socket's buffers."""

MAX_JSON_DEPTH = 64
"""Arrays and objects within one another. A tool's schema has under 20, and nothing here recurses deeper."""
