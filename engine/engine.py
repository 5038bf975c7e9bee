"""The engine, synchronous: requests in, one step at a time, tokens out."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch

from engine.block_hash import BlockHasher
from engine.blocks import BlockPool
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.cost import CostMeter
from engine.errors import DuplicateRequestError, QueueFullError
from engine.interface import (
    BlockEvents,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenOutput,
)
from engine.kv_cache import block_count
from engine.loading import load_decoder
from engine.model_files import open_model
from engine.prefix_cache import PrefixCache
from engine.outline import CachedRun
from engine.requests import check_request, most_tokens
from engine.runner import ModelRunner, Sample
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer

_WARM_UP_TOKENS = (1, 48, 1, 48)


@dataclass(frozen=True, slots=True)
class Answer:
    """What `Engine.generate` made of one prompt."""

    text: str
    token_ids: tuple[int, ...]
    cached_tokens: int
    finish_reason: FinishReason


class Engine:
    """One model, its KV cache and the requests on it; for one thread.

    Raises a ModelError or EngineConfigError when it can't be built.
    """

    def __init__(self, config: EngineConfig) -> None:
        torch.set_num_threads(config.resolved_threads())
        files = open_model(config.model)
        blocks = block_count(files.config, config)
        decoder = load_decoder(files, config, blocks)
        self.info = EngineInfo(
            model_name=files.source.name,
            namespace=files.namespace(config.block_size),
            context_tokens=files.config.context_tokens,
            vocabulary_size=files.config.vocabulary_size,
            block_size=config.block_size,
            kv_blocks_total=blocks,
            backend=decoder.backend,
        )
        self._config = config
        self._files = files
        self._runner = ModelRunner(decoder)
        self._sequences: dict[str, Sequence] = {}
        self._ids = itertools.count()
        self._cost = CostMeter()
        self._reset()
        self._warm_up()

    @classmethod
    def load(cls, model: str = DEFAULT_MODEL, **options: Any) -> Engine:
        """An engine for use by itself, with a block hash key of its own; `options` are EngineConfig's."""
        return cls(EngineConfig(block_hash_key=secrets.token_bytes(32), model=model, **options))

    @property
    def busy(self) -> bool:
        """Whether step() has anything to do."""
        return bool(self._sequences)

    @property
    def stats(self) -> EngineStats:
        """How busy the engine is and what its steps cost."""
        return EngineStats(
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            queued_prefill_tokens=self._scheduler.queued_prefill_tokens(),
            seconds_per_prefill_token=self._cost.seconds_per_prefill_token,
            seconds_per_decode_step=self._cost.seconds_per_decode_step,
            prefill_tokens_per_step=self._config.prefill_tokens_per_step,
            kv_blocks_total=self.info.kv_blocks_total,
            kv_blocks_used=self._prefix_cache.used_blocks,
            kv_blocks_cached=self._prefix_cache.cached_blocks,
        )

    @property
    def preemptions(self) -> int:
        """How often a running request had to give its blocks back."""
        return self._scheduler.preemptions

    def add_request(self, request: GenerationRequest) -> None:
        """Queues a request. Raises a RequestError if it can't be run."""
        check_request(request, self.info)
        if request.request_id in self._sequences:
            raise DuplicateRequestError(f"request {request.request_id!r} is running already")
        if self._scheduler.waiting >= self._config.max_waiting:
            raise QueueFullError(f"{self._config.max_waiting} requests are waiting already; try again later")
        sampling = request.sampling
        ends = frozenset() if sampling.ignore_eos else self._files.config.eos_token_ids
        room = most_tokens(self.info) - len(request.token_ids)
        sequence = Sequence(request, min(sampling.max_tokens, room), ends | sampling.stop_token_ids)
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Drops a request and frees its blocks; unknown ids are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def step(self) -> list[TokenOutput]:
        """Computes the next tokens of all running requests, and of prompts as the budget allows."""
        started = time.perf_counter()
        decoding = self._scheduler.decoding
        budget = self._cost.prefill_allowance(decoding, self._config.prefill_tokens_per_step)
        works = self._scheduler.schedule(budget)
        if not works:
            return []
        sampled = self._runner.run(works)
        outputs = []
        for work in works:
            self._scheduler.advance(work)
            if work in sampled:
                outputs.append(self._emit(work.sequence, sampled[work]))
        self._cost.observe(sum(work.count for work in works), decoding, time.perf_counter() - started)
        return outputs

    def outline(self, limit: int) -> tuple[CachedRun, ...]:
        """The most used runs of cached blocks, each after its parent."""
        return self._prefix_cache.outline(limit)

    def flush(self) -> None:
        """Forgets every cached block that no running request holds."""
        self._prefix_cache.flush()

    def take_events(self) -> BlockEvents:
        """Blocks stored and removed since the last call."""
        return self._prefix_cache.take_events()

    def check(self) -> None:
        """Raises AssertionError if the block accounting is broken."""
        self._prefix_cache.check()

    def generate(
        self, prompts: Items[str | Items[int]], sampling: SamplingParams | None = None
    ) -> list[Answer]:
        """Continues a batch of prompts, texts or token ids, and returns their answers in order."""
        tokenizer = Tokenizer(self._files)
        sampling = sampling or SamplingParams()
        ids = [f"generate-{next(self._ids)}" for _ in prompts]
        answers: dict[str, Answer] = {}
        for request_id, prompt in zip(ids, prompts, strict=True):
            token_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            self.add_request(GenerationRequest(request_id, tuple(token_ids), self.info.namespace, sampling))
        tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
        for output in self._run_until_done(ids):
            got = tokens[output.request_id]
            got += output.token_ids
            if output.finish_reason is not None:
                answers[output.request_id] = Answer(
                    tokenizer.decode(got), tuple(got), output.cached_tokens, output.finish_reason
                )
        return [answers[request_id] for request_id in ids]

    def _run_until_done(self, ids: Items[str]) -> Iterator[TokenOutput]:
        mine = set(ids)
        while mine & self._sequences.keys():
            for output in self.step():
                if output.request_id in mine:
                    yield output

    def _emit(self, sequence: Sequence, sample: Sample) -> TokenOutput:
        index = sequence.generated
        reason = sequence.append(sample.token)
        request_id = sequence.request.request_id
        if reason is not None:
            del self._sequences[request_id]
            self._scheduler.remove(sequence)
        cached = sequence.cached_tokens or 0
        return TokenOutput(request_id, index, (sample.token,), cached, reason, sample.logprobs)

    def _reset(self) -> None:
        hasher = BlockHasher(self._config.block_hash_key, self._config.block_size)
        self._prefix_cache = PrefixCache(BlockPool(self.info.kv_blocks_total), hasher)
        self._scheduler = Scheduler(self._prefix_cache, self._config.max_running)

    def _warm_up(self) -> None:
        """Runs a few steps on throw-away state, so that their cost is known before the first request."""
        room = most_tokens(self.info) - 1
        for count in _WARM_UP_TOKENS:
            request = GenerationRequest("", (0,) * min(count, room), self.info.namespace)
            sequence = Sequence(request, 1, frozenset())
            self._scheduler.add(sequence)
            works = self._scheduler.schedule(count)
            started = time.perf_counter()
            self._runner.run(works)
            tokens = sum(work.count for work in works)
            self._cost.observe(tokens, tokens if tokens == 1 else 0, time.perf_counter() - started)
            self._scheduler.remove(sequence)
