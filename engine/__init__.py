"""The paged-attention engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.answer import Answer
    from engine.engine import Engine

__all__ = ["Answer", "Engine"]


def __getattr__(name: str) -> object:
    """Imports torch only for those who use the engine itself, not for its interface."""
    if name in __all__:
        from engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
