"""A scheduler without a model: every sampled token is made up, from the sequence alone."""

from __future__ import annotations

from engine.block_hash import BlockHasher, Namespace
from engine.blocks import BlockPool
from engine.interface import GenerationRequest
from engine.prefix_cache import PrefixCache
from engine.scheduler import Scheduler, Work
from engine.sequence import Sequence

MODEL = Namespace(b"model")
SIZE = 4


def make(blocks: int = 64, max_running: int = 8) -> tuple[Scheduler, PrefixCache]:
    cache = PrefixCache(BlockPool(blocks), BlockHasher(b"0123456789abcdef", SIZE))
    return Scheduler(cache, max_running), cache


def sequence(
    name: str, length: int, max_tokens: int = 4, start: int = 0, client: str = "", priority: int = 0
) -> Sequence:
    tokens = tuple(range(start, start + length))
    request = GenerationRequest(name, tokens, MODEL, client=client, priority=priority)
    return Sequence(request, max_tokens, frozenset())


def run_step(scheduler: Scheduler, budget: int = 1000) -> list[Work]:
    """One step as the engine runs it."""
    works = scheduler.schedule(budget)
    for work in works:
        samples = work.samples
        scheduler.advance(work)
        if samples and work.sequence.append(1000 + len(work.sequence.token_ids)) is not None:
            scheduler.remove(work.sequence)
    return works
