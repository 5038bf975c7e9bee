"""What a node asks of an engine: a request in, tokens out, and news of its cache and load.

Nothing here imports torch, so that any engine can stand behind the same overlay.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from engine.block_hash import Namespace
from engine.outline import CachedRun

LOWEST_PRIORITY: Final = -2
HIGHEST_PRIORITY: Final = 2


class FinishReason(Enum):
    """Why a request stopped generating."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick each next token; temperature 0 is greedy.

    Noise is a pure function of (seed, position in the sequence), so an interrupted answer
    continues on another node exactly as it would have here.

    `min_p` drops tokens less likely than that share of the likeliest one. `repetition_penalty` counts
    prompt and answer (arXiv 1909.05858); presence and frequency count the answer alone. `logit_bias` has
    (token id, bias) pairs. `logprobs` asks for each token's log-probability and that many likeliest ones,
    `prompt_logprobs` for the same of the prompt's tokens after the first. `grammar` is what the answer must
    match, in llguidance's Lark; empty is anything (engine/grammar.py).
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue. `request_id` is unique among the engine's live requests.

    `resumed_tokens`: how many of the last `token_ids` are the answer's own, begun on another engine.
    `client`: whom it is for; the engine's work is shared out fairly between clients.
    `priority`: LOWEST_PRIORITY to HIGHEST_PRIORITY; the higher goes first among its client's requests, and a
        little ahead of other clients'.
    `deadline`: when the answer ends as it then is, on the clock of time.monotonic(), which all processes of a
        machine share; None is never.
    """

    request_id: str
    token_ids: tuple[int, ...]
    namespace: Namespace
    sampling: SamplingParams = field(default_factory=SamplingParams)
    resumed_tokens: int = 0
    client: str = ""
    priority: int = 0
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The model's own log-probability of a token, before any sampling option, and of the likeliest ones."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """Tokens generated since the last output of the same request; the last one has a reason.

    A token that ends the answer (FinishReason.STOP) is the last of `token_ids`. One without tokens or reason
    says that a begun answer waits for its turn to go on, or brings `prompt_logprobs`: those asked for come in
    order and in parts, the last with the first token.
    """

    request_id: str
    first_index: int
    token_ids: tuple[int, ...]
    cached_tokens: int
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockEvents:
    """Blocks that became cached or stopped being cached in one step, by block hash.

    `cleared` says that everything cached before is gone (the engine restarted or flushed).
    """

    stored: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How busy the engine is. Times are measured, in seconds."""

    running: int = 0
    waiting: int = 0
    queued_prefill_tokens: int = 0
    seconds_per_prefill_token: float = 0.0
    seconds_per_decode_step: float = 0.0
    prefill_tokens_per_step: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the loaded model is; fixed for an engine's life."""

    model_name: str
    namespace: Namespace
    context_tokens: int
    vocabulary_size: int
    block_size: int
    kv_blocks_total: int
    backend: str = ""


class EngineClient(Protocol):
    """An engine as a node sees it, on the node's own event loop."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def stats(self) -> EngineStats:
        """The latest report, with what was submitted since then counted in."""

    async def start(self) -> EngineInfo:
        """Loads the model; raises an EngineError that names the cause and the remedy."""

    async def stop(self) -> None: ...

    @property
    def ready(self) -> bool:
        """Whether requests can be submitted; False while an engine that died is restarted."""

    async def wait_ready(self) -> None:
        """Returns once requests can be submitted."""

    async def flush(self) -> None:
        """Forgets every cached block that no running request holds; listeners hear of it."""

    async def outline(self, limit: int) -> tuple[CachedRun, ...]:
        """The most used runs of cached blocks, at most `limit`, each after its parent.

        Raises EngineDiedError when the engine is gone.
        """

    async def check(self) -> str:
        """What is wrong with the books of the prefix cache; empty when nothing is.

        Raises EngineDiedError when the engine is gone.
        """

    def submit(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        """Streams the answer; closing the generator aborts the request and frees its blocks.

        Raises a RequestError for a request that can't be run, EngineDiedError when the engine is gone.
        """


BlockListener = Callable[[BlockEvents], None]
StatsListener = Callable[[EngineStats], None]
