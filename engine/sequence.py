"""One request while the engine works on it."""

from __future__ import annotations

from engine.grammar import Constraint
from engine.interface import FinishReason, GenerationRequest
from engine.prefix_cache import Node


class Sequence:
    """The tokens of a request, how many are computed, and the blocks that hold their keys and values.

    `path` are the cached blocks it references, `private` the blocks after them that are its own. `scored` of
    the prompt's log-probabilities have been told, where they were asked for. `arrival` numbers sequences in
    the order in which they came.
    """

    def __init__(
        self,
        request: GenerationRequest,
        max_tokens: int,
        stop_ids: frozenset[int],
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.constraint = constraint
        self.token_ids = list(request.token_ids)
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self.computed = 0
        self.cached_tokens: int | None = None
        self.scored = 0
        self.path: list[Node] = []
        self.private: list[int] = []
        self.expected_prefill = len(self.token_ids)
        self.arrival: int | None = None

    @property
    def answer_start(self) -> int:
        """Where the answer begins, on whichever engine it was."""
        return len(self.request.token_ids) - self.request.resumed_tokens

    @property
    def unscored(self) -> range:
        """Positions whose logits give the prompt's log-probabilities that are still to be told."""
        if self.request.sampling.prompt_logprobs is None:
            return range(0)
        return range(self.scored, self.answer_start - 1)

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - len(self.request.token_ids)

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 while it decodes."""
        return len(self.token_ids) - self.computed

    @property
    def block_count(self) -> int:
        """Blocks it holds."""
        return len(self.path) + len(self.private)

    def block_table(self) -> list[int]:
        """Its KV blocks, first to last."""
        return [node.block for node in self.path] + self.private

    def append(self, token: int) -> FinishReason | None:
        """Adds a sampled token, and says whether that ends the answer."""
        self.token_ids.append(token)
        if self.constraint is not None:
            if self.constraint.failed:
                return FinishReason.LENGTH
            self.constraint.accept(token)
        if token in self.stop_ids:
            return FinishReason.STOP
        if self.generated >= self.max_tokens:
            return FinishReason.LENGTH
        return None
