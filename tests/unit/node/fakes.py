"""Stand-ins at the edges of the pipeline: an engine and peers that continue any prompt in one known way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from engine.block_hash import Namespace
from engine.errors import EngineDiedError
from engine.interface import (
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenLogprobs,
    TokenOutput,
)
from engine.outline import CachedRun
from node.forwarding import Accepted, PeerBusyError, PeerFailedError, PeerRefusedError
from node.request import Request
from overlay.core.types import Address, BlockHash, Epoch, Load, NodeId
from overlay.core.views import PeerState, PeerView

NAMESPACE = Namespace(b"model")
INFO = EngineInfo(
    "fake", NAMESPACE, context_tokens=128, vocabulary_size=1000, block_size=4, kv_blocks_total=64
)
SELF = NodeId("self")


def continuation(token_ids: Sequence[int], count: int) -> list[int]:
    """What every correct engine answers: each token depends on all before it."""
    sequence = list(token_ids)
    for _ in range(count):
        sequence.append((sum(sequence) * 31 + len(sequence)) % 997)
    return sequence[len(token_ids) :]


def logprobs_of(token: int, count: int | None) -> tuple[TokenLogprobs, ...]:
    """Made up, and different for each token."""
    if count is None:
        return ()
    return (TokenLogprobs(-token / 7, tuple((token + n, -token / 7 - n) for n in range(count))),)


async def answer(
    request_id: str, token_ids: Sequence[int], sampling: SamplingParams
) -> AsyncGenerator[TokenOutput, None]:
    """Ends early at a stop token; the prompt's log-probabilities come in two parts."""
    scores = [each for token in token_ids[1:] for each in logprobs_of(token, sampling.prompt_logprobs)]
    if scores:
        yield TokenOutput(request_id, 0, (), 0, prompt_logprobs=tuple(scores[:3]))
    for index, token in enumerate(continuation(token_ids, sampling.max_tokens)):
        await asyncio.sleep(0)
        reason = FinishReason.LENGTH if index == sampling.max_tokens - 1 else None
        reason = FinishReason.STOP if token in sampling.stop_token_ids else reason
        yield TokenOutput(
            request_id,
            index,
            (token,),
            4,
            reason,
            logprobs_of(token, sampling.logprobs),
            tuple(scores[3:] if index == 0 else ()),
        )
        if reason:
            return


@dataclass
class FakeEngine:
    """Answers correctly; dies `deaths` times, each after `lives` tokens, or ends at a deadline."""

    deaths: int = 0
    lives: int = 2
    expires_after: int | None = None
    queued: int = 0
    submitted: list[GenerationRequest] = field(default_factory=list)
    open: int = 0
    ready: bool = True
    stuck: asyncio.Event | None = None
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    info: EngineInfo = INFO

    @property
    def stats(self) -> EngineStats:
        return EngineStats(queued_prefill_tokens=self.queued, seconds_per_prefill_token=0.001)

    async def start(self) -> EngineInfo:
        return self.info

    async def stop(self) -> None: ...

    async def flush(self) -> None: ...

    async def check(self) -> str:
        return ""

    async def outline(self, limit: int) -> tuple[CachedRun, ...]:
        return ()

    async def wait_ready(self) -> None:
        self.ready = True

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        self.submitted.append(request)
        self.open += 1
        try:
            self.entered.set()
            if self.stuck is not None:
                await self.stuck.wait()
            outputs = answer(request.request_id, request.token_ids, request.sampling)
            async with aclosing(outputs):
                async for output in outputs:
                    if output.first_index == self.expires_after:
                        yield replace(output, token_ids=(), finish_reason=FinishReason.DEADLINE)
                        return
                    if self.deaths and output.first_index == self.lives:
                        self.deaths -= 1
                        self.ready = False
                        raise EngineDiedError("the engine process died")
                    yield output
        finally:
            self.open -= 1


@dataclass
class FakePeers:
    """Peers by name: how many tokens each delivers before it fails (None: all), or how it refuses."""

    behaviour: dict[NodeId, int | Exception | None]
    asked: list[NodeId] = field(default_factory=list)
    lies: list[TokenOutput] = field(default_factory=list)
    open: int = 0

    async def stream(
        self,
        node_id: NodeId,
        request: Request,
        *,
        first_token_s: float,
        token_gap_s: float,
        timeout_s: float | None,
    ) -> AsyncGenerator[Accepted | TokenOutput, None]:
        self.asked.append(node_id)
        behaviour = self.behaviour[node_id]
        if isinstance(behaviour, Exception):
            raise behaviour
        self.open += 1
        try:
            yield Accepted()
            for lie in self.lies:
                yield lie
            outputs = answer(request.id, request.token_ids, request.sampling)
            async with aclosing(outputs):
                # As on the wire: the finish is a message of its own after the last token.
                reason = FinishReason.LENGTH
                async for output in outputs:
                    reason = output.finish_reason or reason
                    if output.first_index == behaviour:
                        raise PeerFailedError(f"{node_id} stopped")
                    yield replace(output, finish_reason=None)
            if behaviour == request.sampling.max_tokens:
                raise PeerFailedError(f"{node_id} stopped before its last word")
            yield TokenOutput(request.id, 0, (), 4, reason)
        finally:
            self.open -= 1


BUSY = PeerBusyError(0.5)
REFUSES = PeerFailedError("connection refused")
INVALID = PeerRefusedError("INVALID_ARGUMENT")


def idle_load() -> Load:
    return Load(
        Epoch(1), 1, seconds_per_prefill_token=0.001, seconds_per_decode_step=0.01, prefill_tokens_per_step=64
    )


def peer_view(node_id: NodeId, *, load: Load | None = None, model: bytes = NAMESPACE.model) -> PeerView:
    return PeerView(
        node_id=node_id,
        state=PeerState.ALIVE,
        connected=True,
        addresses=(Address("127.0.0.1", 7070),),
        model=model,
        model_name="fake",
        http_url="",
        rtt_s=0.001,
        load=load or idle_load(),
        load_age_s=0.1,
        cached_blocks=0,
        replica_age_s=0.1,
    )


@dataclass
class FakeHearsay:
    """An overlay that says what it is told to."""

    views: tuple[PeerView, ...] = ()
    matches: dict[NodeId, int] = field(default_factory=dict)
    load: Load = field(default_factory=idle_load)
    node_id: NodeId = SELF

    def match(self, hashes: Sequence[BlockHash]) -> Mapping[NodeId, int]:
        return {node_id: min(blocks, len(hashes)) for node_id, blocks in self.matches.items() if hashes}

    def peers(self) -> tuple[PeerView, ...]:
        return self.views

    def own_load(self) -> Load:
        return self.load

    def is_reachable(self, node_id: NodeId) -> bool:
        return True


class FakeTokenizer:
    """One letter a token, so that text shows which tokens came."""

    def __init__(self) -> None:
        self.eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(0x4E00 + token) for token in token_ids)
