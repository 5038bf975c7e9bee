"""The `rumormill` command."""

from __future__ import annotations

from node.cli.app import main

__all__ = ["main"]
