"""Swallows what this network namespace sends to some IPv4 addresses.

`python -m node.testbed.blackhole add IP...`, run in a container's network with CAP_NET_ADMIN, parts it from
others, which notice nothing but silence. Speaks rtnetlink(7) itself, since slim images have no `ip`.
"""

from __future__ import annotations

import argparse
import errno
import os
import socket
import struct
import sys

_NEW_ROUTE, _DELETE_ROUTE, _ERROR = 24, 25, 2  # RTM_NEWROUTE, RTM_DELROUTE, NLMSG_ERROR
_REQUEST, _ACKNOWLEDGE, _CREATE, _EXCLUSIVE = 0x1, 0x4, 0x400, 0x200
_MAIN_TABLE, _STATIC, _BLACKHOLE = 254, 4, 6
_DESTINATION = 1  # RTA_DST

_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=8BI")


def route_message(kind: int, address: str) -> bytes:
    """A request to add or delete the blackhole route to one IPv4 address. Raises OSError for no address."""
    flags = _REQUEST | _ACKNOWLEDGE | (_CREATE | _EXCLUSIVE if kind == _NEW_ROUTE else 0)
    route = _ROUTE.pack(socket.AF_INET, 32, 0, 0, _MAIN_TABLE, _STATIC, 0, _BLACKHOLE, 0)
    attribute = struct.pack("=HH4s", 8, _DESTINATION, socket.inet_aton(address))
    return _HEADER.pack(_HEADER.size + len(route) + len(attribute), kind, flags, 1, 0) + route + attribute


def change(address: str, *, add: bool) -> None:
    """Adds or deletes a route; one that is there, or gone, already is fine. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.send(route_message(_NEW_ROUTE if add else _DELETE_ROUTE, address))
        answer = kernel.recv(4096)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    code = -struct.unpack_from("=i", answer, _HEADER.size)[0] if kind == _ERROR else 0
    if code not in (0, errno.EEXIST, errno.ESRCH):
        raise OSError(code, os.strerror(code), address)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m node.testbed.blackhole")
    parser.add_argument("action", choices=["add", "delete"])
    parser.add_argument("addresses", nargs="+")
    options = parser.parse_args()
    try:
        for address in options.addresses:
            change(address, add=options.action == "add")
    except OSError as error:
        print(f"{error.filename or options.addresses}: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
