"""Every size and rate that a peer could try to abuse, each with its reason.

The codec enforces what a frame's shape can break, the core what needs state.
"""

from __future__ import annotations

MAX_FRAME_BYTES = 1 << 20
"""gRPC's own cap is 4 MiB per message; a quarter of it keeps a frame from blocking a link for long."""

MAX_HASHES_PER_FRAME = 32_768
"""256 KiB of hashes: a usual node's whole set in one chunk, 2 ms of transfer on gigabit Ethernet."""

MAX_SNAPSHOT_CHUNKS = 64
"""With the limit above, 2,097,152 blocks a node: 33 million tokens of 16-token blocks."""

MAX_HASHES_PER_ORIGIN = MAX_HASHES_PER_FRAME * MAX_SNAPSHOT_CHUNKS
"""What one peer may claim to have cached; more is a lie or needs a bigger block."""

MAX_FILTER_BYTES = 256 << 10
"""At 6 bits per block, 349,525 blocks of a far node."""

MAX_FAR_SETS = 1_024
"""Filters of far nodes kept: four times the neighbours' neighbours at the usual degree."""

MAX_FAR_BYTES = 64 << 20
"""All those filters together: 4,096 nodes of 20,000 blocks, or the 256 largest."""

MAX_MEMBERS_PER_FRAME = 128
"""About 20 KiB: a full exchange of a 1,000-node mesh in 8 frames."""

MAX_HEADS_PER_FRAME = 64
"""A head is at most 1 KiB with its key certificate."""

MAX_ADDRESSES_PER_NODE = 16
"""Interfaces times address families of one host."""

MAX_HOST_CHARACTERS = 255
"""The longest DNS name (RFC 1035 2.3.4)."""

MAX_MODEL_DIGEST_BYTES = 64
"""A namespace digest; 16 bytes are in use."""

MAX_NAME_CHARACTERS = 256
"""Of a model name that people read."""

MAX_URL_CHARACTERS = 512
"""Of a node's HTTP door."""

MAX_KEY_CERTIFICATE_BYTES = 8 << 10
"""A leaf certificate with its signature; leaves of this mesh have about 600 bytes."""

MAX_DETAIL_CHARACTERS = 512
"""Of a Bye's explanation, which ends in logs."""

MAX_MEMBERS = 4_096
"""Members and candidates known at once; each costs about 1 KiB."""

MAX_LINKS = 320
"""Streams at once, those being settled included: 165 KiB each in gRPC."""

MAX_LINKS_PER_PEER = 4
"""Both sides may dial at the same time, before and after a restart; the oldest of more are closed."""

MAX_CACHED_PEERS = 256
"""Addresses kept on disk for a restart with no seed up."""

MAX_EPOCH = 1 << 62
"""Epochs are unix milliseconds or one more than the last; this leaves room without overflow."""
