"""Peers on the local network, by mDNS (RFC 6762) and DNS-SD (RFC 6763).

A record is a hint of an address, never a proof of life or identity, and holds no secret.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ifaddr
from zeroconf import (
    DNSQuestionType,
    IPVersion,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from overlay.core.events import AddressHint, HintSource
from overlay.core.limits import MAX_ADDRESSES_PER_NODE, MAX_MEMBERS
from overlay.core.types import Address, NodeId
from overlay.net.targets import is_ip
from overlay.net.tasks import TaskGroup

log = logging.getLogger(__name__)

SERVICE_TYPE = "_rumormill._tcp.local."
TAG_PROPERTY = "mesh"

RECORD_LIFE_S = 120
"""Of every record: RFC 6762 has 75 minutes for some, in which a dead node's name lives on."""

RESOLVE_TIMEOUT_MS = 3_000
RESOLVES_AT_ONCE = 16
"""Anybody on the network can announce names without end; each look at one costs questions on it."""

RETRY_S = 30.0
INTERFACE_CHECK_S = 5.0
REPEAT_HINTS_S = 60.0
"""Known records are hinted at again: the core forgets addresses that don't answer for long."""

Interfaces: TypeAlias = list[str | int | tuple[tuple[str, int, int], int]]
"""As zeroconf takes them: IPv4 addresses, and indexes of interfaces with IPv6."""

NO_MULTICAST = (
    "mDNS can't be used here (%s), so peers on this network won't be found by themselves; "
    "name one with --peer HOST:PORT"
)
TWIN = (
    "another machine (%s) announces this node's id, so one of the two is a copy of the other: "
    "delete node.key in the state folder of one of them and restart it"
)

_FAILURES = (OSError, ZeroconfError, RuntimeError)
_NODE_ID = re.compile(r"[a-z2-7]{52}")


class Discovery:
    """Announces this node on every usable interface, and hints at the nodes it hears of.

    `tags` says to which meshes this node belongs now, its own first. A network without multicast is a
    warning, never fatal; it is tried again.
    """

    def __init__(
        self,
        node_id: NodeId,
        addresses: Sequence[Address],
        tags: Callable[[], tuple[str, ...]],
        hint: Callable[[AddressHint], None],
        *,
        announce: bool = True,
    ) -> None:
        self._node_id = node_id
        self._addresses = _literal(addresses)
        self._tags = tags
        self._hint = hint
        self._announce = announce
        self._tasks = TaskGroup("mDNS")
        self._zeroconf: AsyncZeroconf | None = None
        self._bound: object = None
        self._announced: tuple[tuple[Address, ...], str] | None = None
        self._wanted = self._tags()
        self._known: dict[NodeId, tuple[Address, ...]] = {}
        self._looking: set[NodeId] = set()
        self._look_again: set[NodeId] = set()
        self._turns = asyncio.Semaphore(RESOLVES_AT_ONCE)
        self._mine: set[str] = set()
        self._refreshing = asyncio.Lock()
        self._warned: set[str] = set()

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        """Says goodbye on the network."""
        await self._tasks.close()
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()
            self._zeroconf = None

    async def readdress(self, addresses: Sequence[Address]) -> None:
        """This node listens at other addresses now."""
        self._addresses = _literal(addresses)
        await self._refresh()

    def heard(self, node_id: NodeId) -> tuple[Address, ...]:
        """Where a node of this mesh says that it listens."""
        return self._known.get(node_id, ())

    # -- announcing -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if await self._open():
                break
            await asyncio.sleep(RETRY_S)
        elapsed = 0.0
        while True:
            await self._refresh()
            await asyncio.sleep(INTERFACE_CHECK_S)
            elapsed += INTERFACE_CHECK_S
            if elapsed >= REPEAT_HINTS_S:
                elapsed = 0.0
                for node_id in list(self._known):
                    self._hint_at(node_id)

    async def _open(self) -> bool:
        try:
            self._bound = interfaces = self._interfaces()
            self._zeroconf = _bind(interfaces)
            # Whoever is cancelled while it waits for the start would cancel the start itself.
            await self._zeroconf.zeroconf.async_wait_for_start()
            browser = AsyncServiceBrowser(
                self._zeroconf.zeroconf,
                SERVICE_TYPE,
                handlers=[self._service_changed],
                question_type=DNSQuestionType.QM,
            )
            del browser  # it lives until its zeroconf closes
        except _FAILURES as error:
            self._warn(NO_MULTICAST, str(error) or type(error).__name__)
            if self._zeroconf is not None:
                await self._zeroconf.async_close()
                self._zeroconf = None
            return False
        return True

    async def _refresh(self) -> None:
        """Catches up with this machine's interfaces and addresses, and with the mesh's tags."""
        async with self._refreshing:
            if self._zeroconf is None:
                return
            try:
                await self._follow_interfaces(self._zeroconf)
                await self._announce_if_changed(self._zeroconf)
            except _FAILURES as error:
                self._warn(NO_MULTICAST, str(error) or type(error).__name__)
            if (wanted := self._tags()) != self._wanted:
                self._wanted = wanted
                for node_id in self._known:
                    self._look_at(self._zeroconf.zeroconf, node_id)

    async def _follow_interfaces(self, zeroconf: AsyncZeroconf) -> None:
        interfaces = self._interfaces()
        if self._bound != interfaces:
            await zeroconf.async_update_interfaces(interfaces, _version(interfaces))
            self._bound = interfaces

    async def _announce_if_changed(self, zeroconf: AsyncZeroconf) -> None:
        now = self._addresses, self._tags()[0]
        if not (self._announce and self._addresses) or now == self._announced:
            return
        self._mine |= {address.host for address in self._addresses}
        if self._announced is None:
            # No probing for conflicts: nobody else has this id, but for a copy, which is told of below.
            await zeroconf.async_register_service(self._service(), cooperating_responders=True)
        else:
            await zeroconf.async_update_service(self._service())
        self._announced = now

    def _warn(self, advice: str, cause: str) -> None:
        """Once for each advice."""
        if advice not in self._warned:
            self._warned.add(advice)
            log.warning(advice, cause)

    def _interfaces(self) -> Interfaces:
        """A node that listens on loopback alone stays there."""
        alone = [address.host for address in self._addresses]
        if alone and all(ipaddress.ip_address(host).is_loopback for host in alone):
            return [*dict.fromkeys(alone)]
        found: Interfaces = []
        for adapter in ifaddr.get_adapters():
            for ip in adapter.ips:
                host = str(ip.ip if ip.is_IPv4 else ip.ip[0])
                self._mine.add(host)
                # The loopback interface has no multicast in IPv6.
                entry = host if ip.is_IPv4 else adapter.index
                if host != "::1" and entry is not None and entry not in found:
                    found.append(entry)
        return found

    def _service(self) -> AsyncServiceInfo:
        port = self._addresses[0].port
        # DNS-SD has one port per service; what else there is, Hello tells.
        hosts = [address.host for address in self._addresses if address.port == port]
        return AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self._node_id}.{SERVICE_TYPE}",
            port=port,
            parsed_addresses=hosts[:MAX_ADDRESSES_PER_NODE],
            properties={TAG_PROPERTY: self._tags()[0]},
            server=f"{self._node_id}.local.",
            host_ttl=RECORD_LIFE_S,
            other_ttl=RECORD_LIFE_S,
        )

    # -- listening ------------------------------------------------------------------------------------

    def _service_changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange, **_: Any
    ) -> None:
        node_id = NodeId(name.removesuffix(f".{SERVICE_TYPE}").lower())
        if not _NODE_ID.fullmatch(node_id):
            return
        if node_id == self._node_id:
            self._look_for_twin(zeroconf)
        elif state_change is ServiceStateChange.Removed:
            self._known.pop(node_id, None)
        elif node_id in self._known or len(self._known) < MAX_MEMBERS:
            self._known.setdefault(node_id, ())
            self._look_at(zeroconf, node_id)

    def _look_at(self, zeroconf: Zeroconf, node_id: NodeId) -> None:
        """Learns where a node listens, and hints at it; one look at a time for each name."""
        if node_id in self._looking:
            self._look_again.add(node_id)
        else:
            self._looking.add(node_id)
            self._tasks.spawn(self._look(zeroconf, node_id))

    async def _look(self, zeroconf: Zeroconf, node_id: NodeId) -> None:
        try:
            self._look_again.add(node_id)
            while node_id in self._look_again:
                self._look_again.discard(node_id)
                async with self._turns:
                    await self._resolve(zeroconf, node_id)
        except ZeroconfError as error:  # it is being closed
            log.debug("mDNS can't tell where %s is: %r", node_id, error)
        finally:
            self._looking.discard(node_id)

    async def _resolve(self, zeroconf: Zeroconf, node_id: NodeId) -> None:
        info = AsyncServiceInfo(SERVICE_TYPE, f"{node_id}.{SERVICE_TYPE}")
        if not await info.async_request(zeroconf, RESOLVE_TIMEOUT_MS) or node_id not in self._known:
            return
        tag = info.properties.get(TAG_PROPERTY.encode()) or b""
        if tag.decode("ascii", "replace") not in self._tags() or not info.port:
            self._known[node_id] = ()
            return
        hosts = info.parsed_scoped_addresses(IPVersion.All)[:MAX_ADDRESSES_PER_NODE]
        self._known[node_id] = tuple(Address(host, info.port) for host in hosts)
        self._hint_at(node_id)

    def _hint_at(self, node_id: NodeId) -> None:
        # The latest hint is tried first.
        for address in reversed(self._known[node_id]):
            self._hint(AddressHint(address, node_id, HintSource.MDNS))

    def _look_for_twin(self, zeroconf: Zeroconf) -> None:
        """Says so when another machine announces this node's id."""
        info = AsyncServiceInfo(SERVICE_TYPE, f"{self._node_id}.{SERVICE_TYPE}")
        info.load_from_cache(zeroconf)
        if self._announced and (strangers := set(info.parsed_addresses()) - self._mine):
            self._warn(TWIN, ", ".join(sorted(strangers)))


def _literal(addresses: Sequence[Address]) -> tuple[Address, ...]:
    """Those that fit an A or AAAA record."""
    return tuple(address for address in addresses if is_ip(address.host))


def _bind(interfaces: Interfaces) -> AsyncZeroconf:
    return AsyncZeroconf(interfaces, ip_version=_version(interfaces))


def _version(interfaces: Interfaces) -> IPVersion:
    four = any(isinstance(each, str) and ipaddress.ip_address(each).version == 4 for each in interfaces)
    six = any(not isinstance(each, str) or ":" in each for each in interfaces)
    return IPVersion.All if four and six else IPVersion.V6Only if six else IPVersion.V4Only
