"""Seeds: told one by one, listed in a file, or behind DNS names that are looked up again and again."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from overlay.core.events import AddressHint, HintSource
from overlay.core.types import Address
from overlay.net.errors import SeedError
from overlay.net.targets import is_ip, parse_seed

log = logging.getLogger(__name__)

RESOLVE_PERIOD_S = 30.0
"""As often as a usual record's life in small networks; a file of seeds is read as often."""

MAX_RECORDS = 64
"""Of one name; each becomes a dial."""

MAX_FILE_BYTES = 1 << 20


class Seeds:
    """Every seed told so far. `file` may grow while the node runs; what leaves it is dialled no more
    after the next start."""

    def __init__(self, told: Sequence[str | Address] = (), file: Path | None = None) -> None:
        """Raises SeedError."""
        self._file = file
        seeds = [seed if isinstance(seed, Address) else parse_seed(seed) for seed in told]
        self._all = dict.fromkeys([*seeds, *(read_seeds(file) if file is not None else ())])
        self._warned = False

    def __contains__(self, address: Address) -> bool:
        return address in self._all

    @property
    def all(self) -> tuple[Address, ...]:
        return tuple(self._all)

    def news(self) -> list[Address]:
        """What the file holds now and didn't before; a file that can't be read is a warning, once."""
        if self._file is None:
            return []
        try:
            found = read_seeds(self._file)
        except SeedError as error:
            if not self._warned:
                log.warning("no new peers are taken from there: %s", error)
            self._warned = True
            return []
        self._warned = False
        new = [seed for seed in found if seed not in self._all]
        self._all.update(dict.fromkeys(new))
        return new


def read_seeds(file: Path) -> tuple[Address, ...]:
    """One seed a line, `#` starts a comment; raises SeedError."""
    try:
        text = file.read_text("utf-8") if file.stat().st_size <= MAX_FILE_BYTES else None
    except (OSError, UnicodeDecodeError) as error:
        raise SeedError(f"can't read the file of peers {file}: {error}") from error
    if text is None:
        raise SeedError(f"the file of peers {file} is over {MAX_FILE_BYTES} bytes")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(dict.fromkeys(parse_seed(line) for line in lines if line))


async def resolve(host: str, port: int) -> tuple[Address, ...]:
    """Every A and AAAA record of a name; none when it doesn't resolve."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(Address(str(item[4][0]), port) for item in found))[:MAX_RECORDS]


async def follow_seeds(seeds: Seeds, hint: Callable[[AddressHint], None]) -> None:
    """Hints at seeds that are new in the file, and at every address behind those that are names, for ever.

    The core dials the seeds themselves too; this finds the other nodes behind one name.
    """
    while True:
        for seed in seeds.news():
            hint(AddressHint(seed, None, HintSource.SEED))
        for seed in seeds.all:
            addresses = () if is_ip(seed.host) else await resolve(seed.host, seed.port)
            # A single one is what dialling the name itself leads to.
            for address in addresses if len(addresses) > 1 else ():
                hint(AddressHint(address, None, HintSource.DNS))
        await asyncio.sleep(RESOLVE_PERIOD_S)
