"""What a node keeps on disk between runs: its epoch, and where it met its peers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from overlay.core.errors import StoredStateError
from overlay.core.limits import MAX_ADDRESSES_PER_NODE, MAX_CACHED_PEERS, MAX_EPOCH
from overlay.core.types import Address, Epoch, NodeId

EPOCH_KEY = "epoch"
PEERS_KEY = "peers"


def load_epoch(stored: Mapping[str, bytes]) -> Epoch:
    """The last epoch, 0 for a new node; raises StoredStateError."""
    text = stored.get(EPOCH_KEY, b"0")
    if not text.isdigit() or not 0 <= int(text) < MAX_EPOCH:
        raise StoredStateError(f"the stored {EPOCH_KEY!r} is no number: delete it, and the node begins anew")
    return Epoch(int(text))


def store_epoch(epoch: Epoch) -> tuple[str, bytes]:
    return EPOCH_KEY, str(epoch).encode()


def load_peers(stored: Mapping[str, bytes]) -> dict[NodeId, tuple[Address, ...]]:
    """Where peers were last met; raises StoredStateError."""
    try:
        entries = json.loads(stored.get(PEERS_KEY, b"{}"))
        return {
            NodeId(str(node_id)): tuple(Address(str(host), int(port)) for host, port in addresses)
            for node_id, addresses in list(entries.items())[:MAX_CACHED_PEERS]
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise StoredStateError(
            f"the stored {PEERS_KEY!r} can't be read ({error}): delete it, and the node finds its peers anew"
        ) from error


def store_peers(peers: Iterable[tuple[NodeId, tuple[Address, ...]]]) -> tuple[str, bytes]:
    """At most MAX_CACHED_PEERS of `peers`, the first ones."""
    entries: dict[str, list[tuple[str, int]]] = {}
    for node_id, addresses in peers:
        if len(entries) >= MAX_CACHED_PEERS:
            break
        kept = addresses[:MAX_ADDRESSES_PER_NODE]
        entries[node_id] = [(address.host, address.port) for address in kept]
    return PEERS_KEY, json.dumps(entries, separators=(",", ":")).encode()
