"""Runs the model over one step's work and picks the next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

import torch
from torch import Tensor

from engine.sampling import sample
from engine.scheduler import Work
from engine.span import Span


class Decoder(Protocol):
    """A model with its KV cache."""

    backend: str

    def forward(self, token_ids: Items[int], spans: Items[Span], rows: Items[int]) -> Tensor:
        """Computes a step's tokens, sequence by sequence; returns the logits [len(rows), vocabulary]."""


class ModelRunner:
    """Steps a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

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
        logits = self._decoder.forward(token_ids, spans, rows)
        greedy = logits.argmax(dim=-1).tolist() if rows else []
        sampled: dict[Work, int] = {}
        for row, work in enumerate(work for work in works if work.samples):
            sampling = work.sequence.request.sampling
            if sampling.temperature == 0.0:
                sampled[work] = greedy[row]
            else:
                sampled[work] = sample(logits[row].numpy(), sampling, len(work.sequence.token_ids))
        return sampled
