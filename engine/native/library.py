"""Compiles decoder.cpp once per machine and source, and loads it.

Without a compiler, as in a container, it takes what `python -m engine.native.library` compiled ahead. Nothing
needs it: without either the engine runs in PyTorch and says so in EngineInfo.backend.
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
from engine.progress import begin

SOURCE: Final = Path(__file__).parent / "decoder.cpp"
"""What is compiled; the headers beside it belong to it."""
FLAGS: Final = (
    "-O3",
    "-std=c++17",
    "-pthread",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-w",
)
COMPILE_SECONDS: Final = 300

AHEAD: Final = Path(__file__).parent / "ahead"
_V3: Final = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: Final = {"x86_64": (("x86-64-v4", _V4), ("x86-64-v3", _V3))}
"""Machine -> the levels of its CPUs (x86-64 psABI), fastest first, and what /proc/cpuinfo says of each."""

NO_COMPILER: Final = "there is no C++ compiler (g++ or clang++)"


class NativeUnavailable(Exception):  # noqa: N818 - a state of the machine, not a mistake
    """The decoder can't be compiled or loaded here; the text says why."""


@cache
def load_library() -> ctypes.CDLL:
    """The compiled decoder. Raises NativeUnavailable."""
    compiler = _compiler()
    path = _compiled_here(compiler) if compiler else _compiled_ahead()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path} doesn't load: {error}") from error
    library.forward.restype = library.pack.restype = library.rest.restype = None
    return library


def compile_ahead() -> list[Path]:
    """Compiles for every level of this kind of machine. Raises NativeUnavailable."""
    compiler = _compiler()
    if compiler is None:
        raise NativeUnavailable(NO_COMPILER)
    AHEAD.mkdir(exist_ok=True)
    made = []
    for level, _ in LEVELS.get(platform.machine(), ()):
        path = _path_ahead(level)
        _compile(compiler, level, path)
        made.append(path)
    return made


def _compiler() -> str | None:
    return os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++", "c++")), None)


def _compiled_here(compiler: str) -> Path:
    path = cache_folder("native") / f"decoder-{_key(compiler)}.so"
    with locked(path.with_suffix(".lock")):
        if not path.is_file():
            begin("compiling the decoder for this CPU: about 10 s, once")
            _compile(compiler, "native", path)
    return path


def _compiled_ahead() -> Path:
    """The fastest that this CPU runs, made from this source."""
    flags = set(" ".join(_cpu_flags()).split())
    for level, needed in LEVELS.get(platform.machine(), ()):
        path = _path_ahead(level)
        if needed <= flags and path.is_file():
            return path
    raise NativeUnavailable(f"{NO_COMPILER}, and none was compiled ahead for this CPU")


def _path_ahead(level: str) -> Path:
    digest = hashlib.sha256(_source() + " ".join(FLAGS).encode())
    return AHEAD / f"decoder-{level}-{digest.hexdigest()[:16]}.so"


def _source() -> bytes:
    return b"".join(file.read_bytes() for file in sorted((*SOURCE.parent.glob("*.h"), SOURCE)))


def _key(compiler: str) -> str:
    """Changes with source, flags, compiler and CPU."""
    digest = hashlib.sha256(_source())
    digest.update(" ".join((compiler, *FLAGS, platform.machine())).encode())
    digest.update("".join(_cpu_flags()).encode())
    return digest.hexdigest()[:24]


def _cpu_flags() -> list[str]:
    """What Linux says this machine's CPUs can do; nothing elsewhere."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.is_file() else []
    return sorted({line for line in lines if line.startswith(("flags", "Features"))})


def _compile(compiler: str, architecture: str, path: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = Path(folder) / path.name
            command = [compiler, *FLAGS, f"-march={architecture}", "-o", str(built), str(SOURCE)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
            )
            if done.returncode:
                raise NativeUnavailable(f"{compiler} failed: {done.stderr.strip().splitlines()[-1:]}")
            built.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{compiler} failed: {error}") from error


if __name__ == "__main__":
    for made in compile_ahead():
        print(made)  # noqa: T201 - a build step's output
