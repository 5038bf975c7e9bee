"""One spawned engine process with the threads that carry messages to and from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from engine.messages import Command, Reply

MAX_UNSENT = 4096
"""Commands that may wait for a process that doesn't read; a healthy one reads at once."""

MAX_UNHANDLED = 256
"""Replies that may wait for the event loop; then the pipe fills and the engine pauses."""

_STOP_SECONDS = 5.0
_SPINS = 20_000
"""How long an idle OpenMP thread spins, some tens of microseconds: in a step as fast as spinning for ever,
while sleeping at once nearly doubles a step. An idle engine leaves its cores to others."""
_MAIN = "import sys; from engine.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"


class EngineChild:
    """A running process. Replies and the end (the exit status) are told on the event loop that made it.

    It is a fresh interpreter, not a fork: gRPC's and torch's threads don't survive one. It gets a process
    group of its own, so a Ctrl-C in the terminal reaches the owner alone.
    """

    def __init__(self, on_reply: Callable[[Reply], None], on_end: Callable[[int], None]) -> None:
        self._on_reply = on_reply
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: queue.Queue[Command | None] = queue.Queue(MAX_UNSENT)
        self._room = threading.Semaphore(MAX_UNHANDLED)
        ours, theirs = Pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env=_environment(),
            )
        finally:
            theirs.close()
        threading.Thread(target=self._write, args=(ours,), daemon=True, name="engine-write").start()
        threading.Thread(target=self._read, args=(ours,), daemon=True, name="engine-read").start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, command: Command) -> bool:
        """Passes a command on without waiting; False if the process has stopped reading."""
        try:
            self._unsent.put_nowait(command)
        except queue.Full:
            return False
        return True

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()

    async def stop(self) -> None:
        """Ends the process and waits until it is gone."""
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _write(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while (command := self._unsent.get()) is not None:
                connection.send(command)

    def _read(self, connection: Connection) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            with contextlib.suppress(EOFError, OSError):
                while True:
                    reply = connection.recv()
                    self._room.acquire()
                    self._loop.call_soon_threadsafe(self._handle, reply)
            status = self._process.wait()
            self._loop.call_soon_threadsafe(self._on_end, status)
        with contextlib.suppress(queue.Full):
            self._unsent.put_nowait(None)

    def _handle(self, reply: Reply) -> None:
        self._room.release()
        self._on_reply(reply)


def _environment() -> dict[str, str]:
    """Ours, with this process's import path, and with idle OpenMP threads that soon go to sleep."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment.setdefault("GOMP_SPINCOUNT", str(_SPINS))
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    return environment
