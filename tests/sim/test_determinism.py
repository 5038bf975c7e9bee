"""The same seed gives the same run, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from overlay.sim.runner import ScriptRunner
from overlay.sim.script import Script, load, parse

LOSSY = load(Path(__file__).parent / "lossy.txt")


def _trace(script: Script) -> str:
    trace = ScriptRunner(script, trace=True).run().trace
    assert len(trace) > 1000
    return sha256("\n".join(trace).encode()).hexdigest()


def test_same_seed_same_trace_whatever_the_hash_seed_of_the_process() -> None:
    program = (
        "import sys; from hashlib import sha256; from pathlib import Path;"
        "from overlay.sim.runner import ScriptRunner; from overlay.sim.script import load;"
        "trace = ScriptRunner(load(Path(sys.argv[1])), trace=True).run().trace;"
        "print(sha256('\\n'.join(trace).encode()).hexdigest())"
    )
    root, script = Path(__file__).parents[2], Path(__file__).parent / "lossy.txt"
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", program, str(script)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == _trace(LOSSY)


def test_another_seed_gives_another_trace() -> None:
    text = (Path(__file__).parent / "lossy.txt").read_text()
    assert _trace(parse(text.replace("seed 8", "seed 9"))) != _trace(LOSSY)
