"""Runs the model over one step's work and picks the next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.interface import TokenLogprobs
from engine.sampling import is_plain_greedy, sample, token_logprobs
from engine.scheduler import Work
from engine.span import Span


class Decoder(Protocol):
    """A model with its KV cache."""

    backend: str

    def forward(self, token_ids: Items[int], spans: Items[Span], rows: Items[int]) -> Tensor:
        """Computes a step's tokens, sequence by sequence; returns the logits [len(rows), vocabulary]."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled token, with its log-probabilities if they were asked for."""

    token: int
    logprobs: tuple[TokenLogprobs, ...] = ()


class ModelRunner:
    """Steps a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @torch.inference_mode()
    def run(self, works: Items[Work]) -> dict[Work, Sample]:
        """Computes a step's tokens; returns what was sampled after each work that ends its sequence."""
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
        ending = [work for work in works if work.samples]
        return {work: _sample(work, logits[row], greedy[row]) for row, work in enumerate(ending)}


def _sample(work: Work, logits: Tensor, greedy: int) -> Sample:
    """The next token of a sequence from its logits [vocabulary]."""
    sequence = work.sequence
    sampling = sequence.request.sampling
    token = greedy
    if not is_plain_greedy(sampling):
        token = sample(logits.numpy(), sampling, sequence.token_ids, sequence.answer_start)
    if sampling.logprobs is None:
        return Sample(token)
    return Sample(token, (token_logprobs(logits.numpy(), token, sampling.logprobs),))
