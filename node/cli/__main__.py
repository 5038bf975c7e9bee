"""`python -m node.cli`, the same as `rumormill`."""

from __future__ import annotations

from node.cli import main

main()
