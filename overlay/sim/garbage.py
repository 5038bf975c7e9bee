"""Cycle collection, out of the way while a mesh is simulated."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collects once at the start and then not before the end.

    Walking a large mesh's millions of objects again and again takes half of a run, and finds next to nothing:
    only a crashed node's core is a cycle.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
