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
from engine.sequence import Sequence
from engine.span import Span

_ROWS_AT_ONCE = 64
"""Prompt positions scored at a time, so that the copies of their logits stay small."""


class Decoder(Protocol):
    """A model with its KV cache."""

    backend: str

    def forward(self, token_ids: Items[int], spans: Items[Span], rows: Items[int]) -> Tensor:
        """Computes a step's tokens, sequence by sequence; returns the logits [len(rows), vocabulary]."""

    def copy_block(self, source: int, target: int) -> None:
        """Copies the keys and values of one block to another."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled token, with its log-probabilities if they were asked for."""

    token: int
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What a work brought: the next token if it ended its sequence, and log-probabilities of the prompt."""

    sample: Sample | None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class ModelRunner:
    """Steps a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @torch.inference_mode()
    def run(self, works: Items[Work]) -> dict[Work, Result]:
        """Computes a step's tokens; returns what came of each work that ends its sequence or is scored."""
        token_ids: list[int] = []
        rows: list[int] = []
        spans = []
        scored: dict[Work, range] = {}
        for work in works:
            sequence = work.sequence
            if work.copied is not None:
                self._decoder.copy_block(work.copied, sequence.private[0])
            end = sequence.computed + work.count
            first = len(token_ids) - sequence.computed
            token_ids += sequence.token_ids[sequence.computed : end]
            spans.append(Span(sequence.computed, work.count, sequence.block_table()))
            unscored = sequence.unscored
            scored[work] = range(max(unscored.start, sequence.computed), min(unscored.stop, end))
            rows += [first + position for position in scored[work]]
            if work.samples:
                rows.append(len(token_ids) - 1)
        logits = self._decoder.forward(token_ids, spans, rows)
        return _results(works, scored, logits)


def _results(works: Items[Work], scored: dict[Work, range], logits: Tensor) -> dict[Work, Result]:
    """`logits` [rows, vocabulary]: for each work those of its scored positions, then that to sample from."""
    parts = torch.split(logits, [len(scored[work]) + work.samples for work in works])
    ending = [part[-1:] for work, part in zip(works, parts, strict=True) if work.samples]
    sampled = logits if len(ending) == len(logits) else torch.cat(ending or [logits[:0]])
    greedy = iter(sampled.argmax(dim=-1).tolist())
    results = {}
    for work, part in zip(works, parts, strict=True):
        if work.samples or scored[work]:
            sample = _sample(work.sequence, part[-1], next(greedy)) if work.samples else None
            results[work] = Result(sample, _score(work, scored[work], part))
    return results


def _score(work: Work, positions: range, logits: Tensor) -> tuple[TokenLogprobs, ...]:
    """The log-probabilities of the prompt's tokens after `positions`."""
    sequence, count = work.sequence, work.sequence.request.sampling.prompt_logprobs
    scores: list[TokenLogprobs] = []
    for start in range(0, len(positions), _ROWS_AT_ONCE):
        part = positions[start : start + _ROWS_AT_ONCE]
        following = torch.tensor([[sequence.token_ids[position + 1]] for position in part])
        chunk = logits[start : start + len(part)]
        logprobs = chunk - chunk.logsumexp(dim=-1, keepdim=True)
        own = logprobs.gather(1, following.to(logits.device)).flatten().tolist()
        values, ids = (each.tolist() for each in logprobs.topk(count or 0))
        scores += [
            TokenLogprobs(logprob, tuple(zip(top, those, strict=True)))
            for logprob, top, those in zip(own, ids, values, strict=True)
        ]
    return tuple(scores)


def _sample(sequence: Sequence, logits: Tensor, greedy: int) -> Sample:
    """The next token of a sequence from its logits [vocabulary]."""
    sampling = sequence.request.sampling
    token = greedy
    if not is_plain_greedy(sampling):
        allowed = sequence.constraint.allowed() if sequence.constraint else None
        history, answer_start = sequence.token_ids, sequence.answer_start
        token = sample(logits.cpu().numpy(), sampling, history, answer_start, allowed)
    if sampling.logprobs is None:
        return Sample(token)
    return Sample(token, (token_logprobs(logits.cpu().numpy(), token, sampling.logprobs),))
