"""A command on a terminal of its own, as a person meets it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 120.0
CONTROL_C, CONTROL_D = "\x03", "\x04"

_MAIN = (
    "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "runpy.run_module('node.cli', run_name='__main__', alter_sys=True)"
)
"""Makes the new terminal the one whose Ctrl-C reaches the program."""


class Terminal:
    """Types, and waits for what is shown; what was shown is kept without its escape sequences."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._process = process
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str) -> None:
        """Until it is shown after what was waited for before; fails at the end of the program or the time."""
        deadline = time.monotonic() + SECONDS
        while not (match := re.search(pattern, self.shown)):
            assert self._read(deadline), f"{pattern!r} was not shown, but: {self.shown!r}"
        self.shown = self.shown[match.end() :]

    def status(self) -> int:
        """The exit status; everything shown until then can be looked at."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self._process.wait(SECONDS)

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the program has ended
            return False
        self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", data.decode(errors="replace"))
        return bool(data)


@contextmanager
def on_terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    """Runs `rumormill` on a terminal of 80 columns."""
    master, slave = pty.openpty()
    env = {key: value for key, value in os.environ.items() if not key.startswith("RUMORMILL_")}
    env |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"} | environment
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)
