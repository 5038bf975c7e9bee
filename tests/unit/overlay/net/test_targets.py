from __future__ import annotations

from pathlib import Path

import pytest

from overlay.core.types import Address
from overlay.net.bootstrap import Seeds, read_seeds, resolve
from overlay.net.errors import SeedError
from overlay.net.store import Store
from overlay.net.targets import grpc_target, is_link_local, parse_seed


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7071", Address("10.0.0.1", 7071)),
        ("10.0.0.1", Address("10.0.0.1", 7070)),
        ("node.example", Address("node.example", 7070)),
        (" node.example:9 ", Address("node.example", 9)),
        ("[fe80::1%eth0]:9", Address("fe80::1%eth0", 9)),
        ("2001:db8::1", Address("2001:db8::1", 7070)),
        ("[2001:db8::1]:7070", Address("2001:db8::1", 7070)),
    ],
)
def test_seeds(text: str, address: Address) -> None:
    assert parse_seed(text) == address


@pytest.mark.parametrize("text", ["", ":7070", "host:", "host:0", "host:65536", "host:http"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_seed(text)


def test_grpc_targets() -> None:
    assert grpc_target("10.0.0.1", 7070) == "ipv4:10.0.0.1:7070"
    assert grpc_target("fe80::1%eth0", 7070) == "ipv6:[fe80::1%25eth0]:7070"


async def test_a_name_leads_to_all_its_addresses() -> None:
    assert Address("127.0.0.1", 7070) in await resolve("localhost", 7070)
    assert await resolve("nowhere.invalid", 7070) == ()


def test_a_file_of_seeds_may_grow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "peers"
    file.write_text("# ours\na.example  # first\n\n10.0.0.1:7071\n")
    seeds = Seeds(["10.0.0.1:7071", "b.example"], file)
    a, b, c = (Address(f"{name}.example", 7070) for name in "abc")
    assert seeds.all == (Address("10.0.0.1", 7071), b, a)
    assert seeds.news() == []
    file.write_text("c.example\n")
    assert seeds.news() == [c]
    assert seeds.news() == []
    assert c in seeds
    assert b in seeds
    file.write_text("no:port:here:\n")
    for _ in range(3):
        assert seeds.news() == []
    assert len(caplog.records) == 1


def test_a_file_of_seeds_that_cannot_be_used_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(SeedError, match="can't read"):
        read_seeds(tmp_path / "none")
    (tmp_path / "bad").write_text("host:http\n")
    with pytest.raises(SeedError, match="HOST:PORT"):
        read_seeds(tmp_path / "bad")


def test_addresses_of_one_link_are_told_apart() -> None:
    assert [is_link_local(host) for host in ("fe80::1", "fe80::1%eth0", "169.254.1.1")] == [True] * 3
    assert [is_link_local(host) for host in ("10.0.0.1", "2001:db8::1", "node.example")] == [False] * 3


def test_values_are_replaced_whole_and_survive(tmp_path: Path) -> None:
    store = Store(tmp_path / "overlay")
    assert store.load() == {}
    store.save("epoch", b"1")
    store.save("epoch", b"2")
    store.save("peers", b"{}")
    assert Store(tmp_path / "overlay").load() == {"epoch": b"2", "peers": b"{}"}


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    Store(tmp_path / "file" / "overlay").save("epoch", b"1")
    assert "can't keep epoch" in caplog.text
