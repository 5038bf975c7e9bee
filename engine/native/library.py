"""Compiles decoder.cpp once per machine and source, and loads it.

Nothing needs it: without a compiler the engine runs in PyTorch and says so in EngineInfo.backend.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from engine.cache_folder import cache_folder, locked

SOURCE: Final = Path(__file__).parent / "decoder.cpp"
FLAGS: Final = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-w",
)
COMPILE_SECONDS: Final = 300


class NativeUnavailable(Exception):  # noqa: N818 - a state of the machine, not a mistake
    """The decoder can't be compiled or loaded here; the text says why."""


@cache
def load_library() -> ctypes.CDLL:
    """The compiled decoder. Raises NativeUnavailable."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++", "c++")), None)
    if compiler is None:
        raise NativeUnavailable("there is no C++ compiler (g++ or clang++)")
    path = cache_folder("native") / f"decoder-{_key(compiler)}.so"
    try:
        with locked(path.with_suffix(".lock")):
            if not path.is_file():
                _compile(compiler, path)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{compiler} failed: {error}") from error
    library.forward.restype = library.pack.restype = None
    return library


def _key(compiler: str) -> str:
    """Changes with source, flags, compiler and CPU."""
    digest = hashlib.sha256(SOURCE.read_bytes())
    digest.update(" ".join((compiler, *FLAGS, platform.machine())).encode())
    cpu = Path("/proc/cpuinfo")
    if cpu.is_file():
        flags = {line for line in cpu.read_text().splitlines() if line.startswith(("flags", "Features"))}
        digest.update("".join(sorted(flags)).encode())
    return digest.hexdigest()[:24]


def _compile(compiler: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *FLAGS, "-o", str(built), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        if done.returncode:
            raise NativeUnavailable(f"{compiler} failed: {done.stderr.strip().splitlines()[-1:]}")
        built.replace(path)
