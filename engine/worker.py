"""The engine's own process: commands in from a pipe, a report out after every step."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from engine.errors import EngineError
from engine.messages import (
    Abort,
    Check,
    Checked,
    Command,
    Configure,
    Failed,
    Flush,
    Flushed,
    Loading,
    Outline,
    Outlined,
    Ready,
    Refused,
    Report,
    Submit,
)
from engine.progress import listen

if TYPE_CHECKING:
    from engine.engine import Engine

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    """Serves one engine on the pipe `descriptor` until `parent`, the owner's process id, is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)
    connection = Connection(descriptor)
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        _serve(connection, inbox)
    except OSError:
        return  # the owner is gone


def _die_with(parent: int) -> None:
    """Ends this process when its owner's does, even by SIGKILL; the pipe's end says so where prctl can't."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _receive(connection: Connection, inbox: queue.SimpleQueue[Command]) -> None:
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


def _serve(connection: Connection, inbox: queue.SimpleQueue[Command]) -> None:
    first = inbox.get()
    if not isinstance(first, Configure):
        raise AssertionError("worker: the first command must be Configure")
    listen(lambda stage: connection.send(Loading(stage)))
    try:
        from engine.engine import Engine

        engine = Engine(first.config)
    except EngineError as error:
        connection.send(Failed(error))
        return
    except (MemoryError, RuntimeError, ImportError) as error:
        connection.send(Failed(EngineError(f"the engine can't start: {_one_line(error)}")))
        return
    connection.send(Ready(engine.info, engine.stats))
    submitted = 0
    while True:
        flushes = []
        for command in _commands(inbox, wait=not engine.busy):
            match command:
                case Submit(request):
                    submitted += 1
                    try:
                        engine.add_request(request)
                    except EngineError as error:
                        connection.send(Refused(request.request_id, error))
                case Abort(request_id):
                    engine.abort(request_id)
                case Flush(number):
                    engine.flush()
                    flushes.append(number)
                case Outline(number, limit):
                    connection.send(Outlined(number, engine.outline(limit)))
                case Check(number):
                    connection.send(Checked(number, _problem(engine)))
                case Configure():
                    raise AssertionError("worker: configured twice")
        outputs = engine.step()
        connection.send(Report(tuple(outputs), engine.take_events(), engine.stats, submitted))
        for number in flushes:
            connection.send(Flushed(number))


def _commands(inbox: queue.SimpleQueue[Command], wait: bool) -> list[Command]:
    """All commands there are, at least one if `wait`."""
    commands = [inbox.get()] if wait else []
    while not inbox.empty():
        commands.append(inbox.get())
    return commands


def _problem(engine: Engine) -> str:
    try:
        engine.check()
    except AssertionError as error:
        return str(error)
    return ""


def _one_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
