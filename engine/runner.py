"""Runs the model over one step's work and picks the next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from engine.attention import AttentionPlan, Span
from engine.kv_cache import KVCache
from engine.model import Model
from engine.sampling import sample
from engine.scheduler import Work


class ModelRunner:
    """A loaded model and its KV cache."""

    def __init__(self, model: Model, cache: KVCache) -> None:
        self._model = model
        self._cache = cache

    @torch.inference_mode()
    def run(self, works: Items[Work]) -> dict[Work, int]:
        """Computes a step's tokens; returns the token sampled after each work that ends its sequence."""
        token_ids: list[int] = []
        rows: list[int] = []
        spans = []
        for work in works:
            sequence = work.sequence
            end = sequence.computed + work.count
            token_ids += sequence.token_ids[sequence.computed : end]
            spans.append(Span(sequence.computed, work.count, sequence.block_table()))
            if work.samples:
                rows.append(len(token_ids) - 1)
        plan = AttentionPlan(spans, self._cache.block_size)
        logits = self._model.forward(
            torch.tensor(token_ids), plan, self._cache, torch.tensor(rows, dtype=torch.int64)
        )
        greedy = logits.argmax(dim=-1).tolist() if rows else []
        sampled: dict[Work, int] = {}
        for row, work in enumerate(work for work in works if work.samples):
            sampling = work.sequence.request.sampling
            if sampling.temperature == 0.0:
                sampled[work] = greedy[row]
            else:
                sampled[work] = sample(logits[row].numpy(), sampling, len(work.sequence.token_ids))
        return sampled
