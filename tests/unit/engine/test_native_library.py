"""The compiled decoder is found where there is no compiler, if it was compiled ahead."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from engine.native import library
from engine.native.library import LEVELS, NativeUnavailable, compile_ahead, load_library

V4, V3 = (set(needed) for _, needed in LEVELS["x86_64"])


@pytest.fixture
def ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with empty files in the place of both levels' decoders, on a CPU that runs both."""
    monkeypatch.setattr(library, "AHEAD", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library, "_compile", lambda compiler, level, path: path.write_text(level))
    monkeypatch.setattr(library, "_compiler", lambda: "c++")
    compile_ahead()
    monkeypatch.setattr(library, "_compiler", lambda: None)


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    ("flags", "level"), [(V4, "x86-64-v4"), (V3, "x86-64-v3"), (V4 - {"avx512dq"}, "x86-64-v3")]
)
def test_the_best_level_that_the_cpu_runs_is_taken(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], level: str
) -> None:
    monkeypatch.setattr(library, "_cpu_flags", lambda: ["flags\t: sse2 " + " ".join(flags)])
    assert library._compiled_ahead().read_text() == level


@pytest.mark.usefixtures("ahead")
def test_no_level_is_taken_that_the_cpu_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_cpu_flags", lambda: ["flags\t: " + " ".join(V3 - {"fma"})])
    with pytest.raises(NativeUnavailable, match="ahead"):
        library._compiled_ahead()


@pytest.mark.usefixtures("ahead")
def test_what_was_made_from_another_source_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "decoder.cpp"
    source.write_text(library.SOURCE.read_text() + "// changed")
    monkeypatch.setattr(library, "SOURCE", source)
    monkeypatch.setattr(library, "_cpu_flags", lambda: ["flags\t: " + " ".join(V4)])
    with pytest.raises(NativeUnavailable, match="ahead"):
        library._compiled_ahead()


@pytest.mark.skipif(library._compiler() is None, reason="there is no C++ compiler")
@pytest.mark.skipif(platform.machine() not in LEVELS, reason="no levels for this kind of machine")
def test_a_decoder_compiled_ahead_loads_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "AHEAD", tmp_path)
    compile_ahead()
    monkeypatch.setattr(library, "_compiler", lambda: None)
    loaded = load_library.__wrapped__()
    assert loaded.forward
    assert loaded.pack
