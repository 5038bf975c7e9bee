"""Seeds by name: every address behind a DNS name, looked up again and again."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from overlay.core.events import AddressHint, HintSource
from overlay.core.types import Address
from overlay.net.targets import is_ip

log = logging.getLogger(__name__)

RESOLVE_PERIOD_S = 30.0
"""As often as a usual record's life in small networks."""

MAX_RECORDS = 64
"""Of one name; each becomes a dial."""


async def resolve(host: str, port: int) -> tuple[Address, ...]:
    """Every A and AAAA record of a name; none when it doesn't resolve."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(Address(str(item[4][0]), port) for item in found))[:MAX_RECORDS]


async def follow_names(seeds: Sequence[Address], hint: Callable[[AddressHint], None]) -> None:
    """Hints at every address behind the seeds that are names, for ever.

    The core dials the seeds themselves too; this finds the other nodes behind one name.
    """
    names = [seed for seed in seeds if not is_ip(seed.host)]
    while names:
        for seed in names:
            addresses = await resolve(seed.host, seed.port)
            # A single one is what dialling the name itself leads to.
            for address in addresses if len(addresses) > 1 else ():
                hint(AddressHint(address, None, HintSource.DNS))
        await asyncio.sleep(RESOLVE_PERIOD_S)
