"""The engine, synchronous: requests in, one step at a time, tokens out."""

from __future__ import annotations

import itertools
import operator
import secrets
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, Final

import torch

from engine.answer import Answer, AnswerWriter
from engine.block_hash import BlockHasher
from engine.blocks import BlockPool
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.cost import CostMeter
from engine.errors import DuplicateRequestError, InvalidTokenIdsError, QueueFullError
from engine.grammar import Grammars
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
from engine.outline import CachedRun
from engine.prefix_cache import PrefixCache
from engine.requests import check_request, most_tokens
from engine.runner import ModelRunner, Result
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer

_WARM_UP_TOKENS: Final = (1, 48, 1, 48)

_PATIENCE_SECONDS: Final = 0.5
"""How often a begun answer that waits for its turn says that it still lives."""


class Engine:
    """One model, its KV cache and the requests on it; for one thread. `clock` judges deadlines.

    Raises a ModelError or EngineConfigError when it can't be built.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
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
        self._clock = clock
        self._patient_until = 0.0
        self._files = files
        self._grammars = Grammars(files)
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
            prefill_tokens_per_step=self._prefill_allowance(self._scheduler.decoding),
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
        constraint = None
        if sampling.grammar:
            answer = request.token_ids[len(request.token_ids) - request.resumed_tokens :]
            constraint = self._grammars.constraint(sampling.grammar, answer)
        stop_ids = ends | sampling.stop_token_ids
        sequence = Sequence(request, min(sampling.max_tokens, room), stop_ids, constraint)
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
        outputs = self._expired()
        decoding = self._scheduler.decoding
        works = self._scheduler.schedule(self._prefill_allowance(decoding))
        if not works:
            return outputs
        results = self._runner.run(works)
        outputs += self._patient()
        for work in works:
            self._scheduler.advance(work)
            if work in results:
                outputs.append(self._emit(work.sequence, results[work]))
        self._cost.observe(sum(work.count for work in works), decoding, time.perf_counter() - started)
        return outputs

    def flush(self) -> None:
        """Forgets every cached block that no running request holds."""
        self._prefix_cache.flush()

    def outline(self, limit: int) -> tuple[CachedRun, ...]:
        """The most used runs of cached blocks, each after its parent."""
        return self._prefix_cache.outline(limit)

    def take_events(self) -> BlockEvents:
        """Blocks stored and removed since the last call."""
        return self._prefix_cache.take_events()

    def check(self) -> None:
        """Raises AssertionError if the block accounting is broken."""
        self._prefix_cache.check()

    def generate(
        self,
        prompts: Items[str | Items[int]],
        sampling: SamplingParams | None = None,
        stop: str | Items[str] = (),
    ) -> list[Answer]:
        """Continues a batch of prompts, texts or token ids, and returns their answers in order.

        An answer ends before the first string of `stop` in its text. Raises the RequestError of any prompt.
        """
        tokenizer = Tokenizer(self._files)
        sampling = sampling or SamplingParams()
        requests = [
            GenerationRequest(
                f"generate-{next(self._ids)}",
                _token_ids(tokenizer, prompt),
                self.info.namespace,
                sampling,
            )
            for prompt in prompts
        ]
        for request in requests:
            check_request(request, self.info)
        writers = {request.request_id: AnswerWriter(tokenizer, stop) for request in requests}
        try:
            self._run_all(requests, writers)
        finally:
            for request in requests:
                self.abort(request.request_id)
        return [writers[request.request_id].answer() for request in requests]

    def _run_all(self, requests: Items[GenerationRequest], writers: dict[str, AnswerWriter]) -> None:
        """Steps until every writer is done, with no more requests queued than there may be."""
        unsent = deque(requests)
        open_ids = set(writers)
        while open_ids:
            while unsent and self._scheduler.waiting < self._config.max_waiting:
                self.add_request(unsent.popleft())
            for output in self.step():
                if output.request_id in open_ids and writers[output.request_id].add(output):
                    open_ids.remove(output.request_id)
                    self.abort(output.request_id)

    def _prefill_allowance(self, decoding: int) -> int:
        return self._cost.prefill_allowance(decoding, self._config.prefill_tokens_per_step)

    def _expired(self) -> list[TokenOutput]:
        """Ends the requests whose deadline has passed."""
        now = self._clock()
        expired = [
            sequence
            for sequence in self._sequences.values()
            if sequence.request.deadline is not None and sequence.request.deadline <= now
        ]
        for sequence in expired:
            self.abort(sequence.request.request_id)
        return [_wordless(sequence, FinishReason.DEADLINE) for sequence in expired]

    def _patient(self) -> list[TokenOutput]:
        """Now and then, an output without tokens for each begun answer that waits or is recomputed."""
        now = self._clock()
        if now < self._patient_until:
            return []
        self._patient_until = now + _PATIENCE_SECONDS
        return [
            _wordless(sequence)
            for sequence in self._sequences.values()
            if sequence.generated and sequence.uncomputed > 1
        ]

    def _emit(self, sequence: Sequence, result: Result) -> TokenOutput:
        index, sample = sequence.generated, result.sample
        reason = sequence.append(sample.token) if sample else None
        sequence.scored += len(result.prompt_logprobs)
        if reason is not None:
            del self._sequences[sequence.request.request_id]
            self._scheduler.remove(sequence)
        return TokenOutput(
            sequence.request.request_id,
            index,
            (sample.token,) if sample else (),
            sequence.cached_tokens or 0,
            reason,
            sample.logprobs if sample else (),
            result.prompt_logprobs,
        )

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


def _token_ids(tokenizer: Tokenizer, prompt: str | Items[int]) -> tuple[int, ...]:
    """A prompt's own ids, of whatever integer type; raises InvalidTokenIdsError for others."""
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt))
    try:
        return tuple(map(operator.index, prompt))
    except TypeError as error:
        raise InvalidTokenIdsError("a prompt is a text or a sequence of whole numbers") from error


def _wordless(sequence: Sequence, reason: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(
        sequence.request.request_id, sequence.generated, (), sequence.cached_tokens or 0, reason
    )
