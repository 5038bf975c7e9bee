"""What an engine's process and its owner say to each other over their pipe."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.interface import BlockEvents, EngineInfo, EngineStats, GenerationRequest, TokenOutput
from engine.outline import CachedRun


@dataclass(frozen=True, slots=True)
class Configure:
    """Load this; the first thing an engine process hears."""

    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Submit:
    """Run a request."""

    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Forget unused cached blocks, then answer Flushed with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Outline:
    """Answer Outlined with the same number and at most `limit` runs of the prefix cache."""

    number: int
    limit: int


@dataclass(frozen=True, slots=True)
class Check:
    """Check the books of the prefix cache, then answer Checked with the same number."""

    number: int


Question = Flush | Outline | Check
Command = Configure | Submit | Abort | Question


@dataclass(frozen=True, slots=True)
class Loading:
    """What the loading of the model is busy with."""

    stage: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    info: EngineInfo
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The model can't be loaded; the process ends."""

    error: EngineError


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that can't be run."""

    request_id: str
    error: EngineError


@dataclass(frozen=True, slots=True)
class Report:
    """What one step brought. `submitted` counts the Submits that `stats` covers."""

    outputs: tuple[TokenOutput, ...]
    events: BlockEvents
    stats: EngineStats
    submitted: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """A Flush is done; its events were in the Report before."""

    number: int


@dataclass(frozen=True, slots=True)
class Outlined:
    """What the prefix cache looks like now."""

    number: int
    runs: tuple[CachedRun, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What is wrong with the books of the prefix cache; empty when nothing is."""

    number: int
    problem: str


Answer = Flushed | Outlined | Checked
Reply = Loading | Ready | Failed | Refused | Report | Answer
