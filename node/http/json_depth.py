"""How deeply a JSON text nests, without parsing it: what walks a parsed value may recurse."""

from __future__ import annotations

import re

import numpy as np

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

_STEPS = np.zeros(256, np.int32)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def json_depth(text: bytes) -> int:
    """The most arrays and objects open at one place; of a malformed text that of its well-formed start."""
    bare = _STRINGS.sub(b"", text)
    if not bare:
        return 0
    return int(max(np.cumsum(_STEPS[np.frombuffer(bare, np.uint8)], dtype=np.int32).max(), 0))
