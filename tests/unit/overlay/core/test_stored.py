from __future__ import annotations

import pytest

from overlay.core.errors import StoredStateError
from overlay.core.limits import MAX_CACHED_PEERS
from overlay.core.stored import load_epoch, load_peers, store_epoch, store_peers
from overlay.core.types import Address, Epoch, NodeId


def test_what_is_stored_is_found() -> None:
    peers = {NodeId("a"): (Address("10.0.0.1", 7070), Address("fe80::1", 7071)), NodeId("b"): ()}
    stored = dict([store_epoch(Epoch(17)), store_peers(peers.items())])
    assert load_epoch(stored) == 17
    assert load_peers(stored) == peers


def test_nothing_stored_is_a_new_node() -> None:
    assert load_epoch({}) == 0
    assert load_peers({}) == {}


def test_the_cache_is_bounded() -> None:
    many = [(NodeId(f"n{number}"), (Address("h", 1),)) for number in range(1000)]
    assert len(load_peers(dict([store_peers(many)]))) == MAX_CACHED_PEERS


@pytest.mark.parametrize("value", [b"", b"-1", b"12x", b"9" * 30])
def test_a_damaged_epoch_says_what_to_do(value: bytes) -> None:
    with pytest.raises(StoredStateError, match="delete it"):
        load_epoch({"epoch": value})


@pytest.mark.parametrize("value", [b"\xff", b"[]", b'{"a": 3}', b'{"a": [["h"]]}', b'{"a": [["h", "x"]]}'])
def test_damaged_peers_say_what_to_do(value: bytes) -> None:
    with pytest.raises(StoredStateError, match="delete it"):
        load_peers({"peers": value})
