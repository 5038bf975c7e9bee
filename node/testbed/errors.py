"""What stops a testbed command."""

from __future__ import annotations

from node.errors import NodeError


class TestbedError(NodeError):
    """The containers can't do what was asked; the text says what to do about it."""

    __test__ = False  # no test class, whatever its name
