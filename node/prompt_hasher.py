"""Turns a request into what the router asks about: its block hashes, and how much of it is cached here."""

from __future__ import annotations

from engine.block_hash import BlockHasher
from node.own_blocks import OwnBlocks
from node.request import Request
from overlay.core.router import Query
from overlay.core.types import BlockHash


class PromptHasher:
    """Where the engine's world meets the overlay's: both know blocks by their hashes alone."""

    def __init__(self, hasher: BlockHasher, blocks: OwnBlocks) -> None:
        self._hasher = hasher
        self._blocks = blocks

    def query(self, request: Request) -> Query:
        """No cached block is of use to a request that wants log-probabilities of its whole prompt."""
        if request.sampling.prompt_logprobs is not None:
            return Query(len(request.token_ids), (), self._hasher.block_size, 0)
        hashes = [BlockHash(value) for value in self._hasher.prefix(request.namespace, request.token_ids)]
        size = self._hasher.block_size
        return Query(len(request.token_ids), hashes, size, self._blocks.match(hashes) * size)
