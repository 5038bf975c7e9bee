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
    InterfaceChoice,
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
RETRY_S = 30.0
INTERFACE_CHECK_S = 5.0
REPEAT_HINTS_S = 60.0
"""Known records are hinted at again: the core forgets addresses that don't answer for long."""

Interfaces: TypeAlias = list[str | int | tuple[tuple[str, int, int], int]] | InterfaceChoice
"""As zeroconf takes them: addresses, or the choice of all."""

_NODE_ID = re.compile(r"[a-z2-7]{52}")


class Discovery:
    """Announces this node on every usable interface, and hints at the nodes it hears of.

    A network without multicast is a warning, never fatal; it is tried again.
    """

    def __init__(
        self,
        node_id: NodeId,
        addresses: Sequence[Address],
        tags: Sequence[str],
        hint: Callable[[AddressHint], None],
        *,
        announce: bool = True,
    ) -> None:
        self._node_id = node_id
        self._addresses = [address for address in addresses if is_ip(address.host)]
        self._tags = tuple(tags)
        self._hint = hint
        self._announce = announce
        self._tasks = TaskGroup("mDNS")
        self._zeroconf: AsyncZeroconf | None = None
        self._known: dict[str, tuple[Address, ...]] = {}
        self._warned = False

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
        self._addresses = [address for address in addresses if is_ip(address.host)]
        if self._zeroconf is not None and self._addresses:
            await self._zeroconf.async_update_service(self._service())

    # -- announcing -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if await self._open():
                break
            await asyncio.sleep(RETRY_S)
        adapters = _adapters()
        elapsed = 0.0
        while True:
            await asyncio.sleep(INTERFACE_CHECK_S)
            elapsed += INTERFACE_CHECK_S
            if (now := _adapters()) != adapters:
                adapters = now
                await self._follow_interfaces()
            if elapsed >= REPEAT_HINTS_S:
                elapsed = 0.0
                for name in list(self._known):
                    self._hint_at(name)

    async def _open(self) -> bool:
        try:
            self._zeroconf = _bind(self._interfaces())
            browser = AsyncServiceBrowser(
                self._zeroconf.zeroconf,
                SERVICE_TYPE,
                handlers=[self._service_changed],
                question_type=DNSQuestionType.QM,
            )
            del browser  # it lives until its zeroconf closes
            if self._addresses and self._announce:
                # No probing for conflicts: nobody else has this id.
                await self._zeroconf.async_register_service(self._service(), cooperating_responders=True)
        except (OSError, ZeroconfError, RuntimeError) as error:
            self._warn(error)
            if self._zeroconf is not None:
                await self._zeroconf.async_close()
                self._zeroconf = None
            return False
        return True

    async def _follow_interfaces(self) -> None:
        if self._zeroconf is None:
            return
        try:
            await self._zeroconf.async_update_interfaces(self._interfaces())
        except (OSError, ZeroconfError, RuntimeError) as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "mDNS can't be used here (%s), so peers on this network won't be found by themselves; "
                "name one with --peer HOST:PORT",
                error,
            )

    def _interfaces(self) -> Interfaces:
        """A node that listens on loopback alone stays there."""
        hosts = [ipaddress.ip_address(address.host) for address in self._addresses]
        if hosts and all(host.is_loopback for host in hosts):
            return [*{str(host) for host in hosts}]
        return InterfaceChoice.All

    def _service(self) -> AsyncServiceInfo:
        port = self._addresses[0].port
        return AsyncServiceInfo(
            SERVICE_TYPE,
            f"{self._node_id}.{SERVICE_TYPE}",
            port=port,
            # DNS-SD has one port per service; what else there is, Hello tells.
            parsed_addresses=[address.host for address in self._addresses if address.port == port],
            properties={TAG_PROPERTY: self._tags[0]},
            server=f"{self._node_id}.local.",
            host_ttl=RECORD_LIFE_S,
            other_ttl=RECORD_LIFE_S,
        )

    # -- listening ------------------------------------------------------------------------------------

    def _service_changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange, **_: Any
    ) -> None:
        node_id = name.removesuffix(f".{SERVICE_TYPE}").lower()
        if node_id == self._node_id or not _NODE_ID.fullmatch(node_id):
            return
        if state_change is ServiceStateChange.Removed:
            self._known.pop(node_id, None)
        elif node_id in self._known or len(self._known) < MAX_MEMBERS:
            self._known.setdefault(node_id, ())
            self._tasks.spawn(self._resolve(zeroconf, name, node_id))

    async def _resolve(self, zeroconf: Zeroconf, name: str, node_id: str) -> None:
        info = AsyncServiceInfo(SERVICE_TYPE, name)
        if not await info.async_request(zeroconf, RESOLVE_TIMEOUT_MS):
            return
        tag = info.properties.get(TAG_PROPERTY.encode())
        if tag is None or tag.decode("ascii", "replace") not in self._tags or not info.port:
            return
        hosts = info.parsed_scoped_addresses(IPVersion.All)[:MAX_ADDRESSES_PER_NODE]
        self._known[node_id] = tuple(Address(host, info.port) for host in hosts)
        self._hint_at(node_id)

    def _hint_at(self, node_id: str) -> None:
        for address in self._known[node_id]:
            self._hint(AddressHint(address, NodeId(node_id), HintSource.MDNS))


def _bind(interfaces: Interfaces) -> AsyncZeroconf:
    if interfaces is not InterfaceChoice.All:
        return AsyncZeroconf(interfaces)
    try:
        return AsyncZeroconf(interfaces, ip_version=IPVersion.All)
    except OSError:
        # A kernel without IPv6.
        return AsyncZeroconf(interfaces, ip_version=IPVersion.V4Only)


def _adapters() -> frozenset[tuple[str, str]]:
    return frozenset((adapter.name, str(ip.ip)) for adapter in ifaddr.get_adapters() for ip in adapter.ips)
