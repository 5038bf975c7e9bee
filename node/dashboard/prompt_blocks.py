"""A caller's own prompt as blocks: its sender, and nobody else, reads text in the pictures of caches."""

from __future__ import annotations

from typing import Any

from engine.block_hash import BlockHasher, Namespace
from engine.tokenizer import Tokenizer
from node.dashboard.pictures import hash_label
from node.request_builder import Prompt, RequestBuilder


class PromptBlocks:
    """Tokenizes and hashes as a request would be; keeps nothing."""

    def __init__(
        self, builder: RequestBuilder, tokenizer: Tokenizer, hasher: BlockHasher, model: bytes
    ) -> None:
        self._builder = builder
        self._tokenizer = tokenizer
        self._hasher = hasher
        self._model = model

    def of(self, prompt: Prompt, salt: bytes) -> dict[str, Any]:
        """Label and text of every full block; raises InvalidRequestError."""
        token_ids = self._builder.tokenize(prompt)
        size = self._hasher.block_size
        hashes = self._hasher.prefix(Namespace(self._model, salt), token_ids)
        return {
            "tokens": len(token_ids),
            "blocks": [
                {
                    "hash": hash_label(block_hash),
                    "text": self._tokenizer.decode(token_ids[place * size : (place + 1) * size]),
                }
                for place, block_hash in enumerate(hashes)
            ],
        }
