"""Everything that passes one port of a switch, as a wire tap sees it. Linux, root."""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict

from tests.e2e.lan import Lan, within

_ETH_P_ALL = 3
_TCP, _UDP = 6, 17
MDNS_PORT = 5353


class Capture:
    """A context manager; frames are kept from entering to leaving."""

    def __init__(self, lan: Lan, number: int) -> None:
        self._socket = within(lan.switch, lambda: _tap(f"port{number}"))
        self._thread = threading.Thread(target=self._read)
        self._ending = False
        self.frames: list[bytes] = []

    def __enter__(self) -> Capture:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while not self._ending:
            try:
                self.frames.append(self._socket.recv(1 << 16))
            except TimeoutError:
                continue

    def flows(self) -> dict[bytes, bytes]:
        """The payloads of each TCP connection and direction, in the order they came."""
        flows: dict[bytes, bytearray] = defaultdict(bytearray)
        for protocol, ends, segment in map(_parse, self.frames):
            if protocol == _TCP:
                flows[ends + segment[:4]] += segment[(segment[12] >> 4) * 4 :]
        return {ends: bytes(data) for ends, data in flows.items()}

    def mdns(self) -> list[bytes]:
        """The payload of each mDNS packet."""
        return [
            segment[8:]
            for protocol, _, segment in map(_parse, self.frames)
            if protocol == _UDP and struct.unpack("!H", segment[2:4])[0] == MDNS_PORT
        ]

    def everything(self) -> bytes:
        """All flows after one another, then every frame as it was."""
        return b"".join((*self.flows().values(), *self.frames))


def _tap(interface: str) -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    tap.bind((interface, 0))
    tap.settimeout(0.1)
    return tap


def _parse(frame: bytes) -> tuple[int, bytes, bytes]:
    """(IP protocol, both addresses, what IP carries); no extension headers are in use here."""
    kind, packet = frame[12:14], frame[14:]
    if kind == b"\x08\x00":
        length = struct.unpack("!H", packet[2:4])[0]
        return packet[9], packet[12:20], packet[(packet[0] & 15) * 4 : length]
    if kind == b"\x86\xdd":
        length = 40 + struct.unpack("!H", packet[4:6])[0]
        return packet[6], packet[8:40], packet[40:length]
    return 0, b"", b""
