"""Picking the next token, torch-free.

Noise comes from a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): a hash of (seed, position, token id), so it depends on nothing else that runs. A token is picked by the
Gumbel-max trick: argmax of logit / temperature + Gumbel noise is a draw from the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidSamplingError
from engine.interface import SamplingParams, TokenLogprobs

MAX_STOP_TOKEN_IDS = 64
"""Checked on every token; a client has no use for more."""

MAX_LOGIT_BIASES = 1024
"""Applied to every token's logits."""

MAX_TOP_LOGPROBS = 20
"""As many as OpenAI's interface offers."""

_INTEGERS = ("max_tokens", "top_k", "seed", "logprobs", "prompt_logprobs")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_OPTIONAL = ("logprobs", "prompt_logprobs")

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def check_sampling(sampling: SamplingParams, vocabulary_size: int) -> None:
    """Raises InvalidSamplingError for values without a meaning."""
    _check_types(sampling)
    if sampling.max_tokens < 1:
        raise InvalidSamplingError(f"max_tokens must be at least 1, not {sampling.max_tokens}")
    if not 0.0 <= sampling.temperature <= 100.0:
        raise InvalidSamplingError(f"temperature must be between 0 and 100, not {sampling.temperature}")
    if not 0.0 < sampling.top_p <= 1.0:
        raise InvalidSamplingError(f"top_p must be above 0 and at most 1, not {sampling.top_p}")
    if sampling.top_k < 0:
        raise InvalidSamplingError(f"top_k must be 0 (off) or more, not {sampling.top_k}")
    if not 0 <= sampling.seed < 1 << 64:
        raise InvalidSamplingError(f"seed must be an unsigned 64-bit number, not {sampling.seed}")
    if not 0.0 <= sampling.min_p <= 1.0:
        raise InvalidSamplingError(f"min_p must be from 0 to 1, not {sampling.min_p}")
    if not 0.01 <= sampling.repetition_penalty <= 100.0:
        raise InvalidSamplingError(
            f"repetition_penalty must be from 0.01 to 100, not {sampling.repetition_penalty}"
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= getattr(sampling, name) <= 2.0:
            raise InvalidSamplingError(f"{name} must be from -2 to 2, not {getattr(sampling, name)}")
    if len(sampling.logit_bias) > MAX_LOGIT_BIASES:
        raise InvalidSamplingError(f"at most {MAX_LOGIT_BIASES} logit_bias, not {len(sampling.logit_bias)}")
    if any(not 0 <= token < vocabulary_size or not abs(bias) <= 100 for token, bias in sampling.logit_bias):
        raise InvalidSamplingError(
            f"logit_bias needs token ids below {vocabulary_size} and biases from -100 to 100"
        )
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(sampling, name)
        if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
            raise InvalidSamplingError(f"{name} must be from 0 to {MAX_TOP_LOGPROBS}, not {count}")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidSamplingError(
            f"at most {MAX_STOP_TOKEN_IDS} stop_token_ids, not {len(sampling.stop_token_ids)}"
        )
    if any(not 0 <= token < vocabulary_size for token in sampling.stop_token_ids):
        raise InvalidSamplingError(f"stop_token_ids must be below the vocabulary size, {vocabulary_size}")


def _check_types(sampling: SamplingParams) -> None:
    """What a caller without a type checker may have given; numpy's numbers will do."""
    for kind, names in ((Integral, _INTEGERS), (Real, _NUMBERS)):
        for name in names:
            value = getattr(sampling, name)
            if not _is(kind, value) and not (value is None and name in _OPTIONAL):
                raise InvalidSamplingError(f"{name} must be a number, not {value!r}")
    if not isinstance(sampling.stop_token_ids, frozenset):
        raise InvalidSamplingError("stop_token_ids must be a frozenset")
    if not all(_is(Integral, token) for token in sampling.stop_token_ids):
        raise InvalidSamplingError("stop_token_ids must be whole numbers")
    pairs = sampling.logit_bias
    if not isinstance(pairs, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidSamplingError("logit_bias must be a tuple of (token id, bias) pairs")
    if not all(_is(Integral, token) and _is(Real, bias) for token, bias in pairs):
        raise InvalidSamplingError("logit_bias must be pairs of numbers")


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def is_plain_greedy(sampling: SamplingParams) -> bool:
    """Whether the largest logit as it is decides."""
    return sampling.temperature == 0.0 and not sampling.grammar and not _adjusts(sampling)


def sample(
    logits: Floats,
    sampling: SamplingParams,
    token_ids: Sequence[int],
    answer_start: int,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> int:
    """The next token of a sequence `token_ids` whose answer begins at `answer_start`.

    `logits` [vocabulary] are those after its last token; a token that is not `allowed` is never picked.
    """
    if allowed is not None:
        logits = np.where(allowed, logits, np.float32(-np.inf))
    if _adjusts(sampling):
        logits = _adjusted(logits, sampling, token_ids, answer_start)
    if sampling.temperature == 0.0:
        return int(logits.argmax())
    ids, scores = _candidates(logits, sampling)
    return int(ids[np.argmax(scores + gumbel(sampling.seed, len(token_ids), ids))])


def token_logprobs(logits: Floats, token: int, count: int) -> TokenLogprobs:
    """The log-probabilities of `token` and of the `count` likeliest under logits [vocabulary]."""
    exact = logits.astype(np.float64)
    logprobs = exact - exact.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    top = np.argsort(-logprobs, kind="stable")[:count] if count else ()
    return TokenLogprobs(float(logprobs[token]), tuple((int(each), float(logprobs[each])) for each in top))


def gumbel(seed: int, position: int, ids: Ids) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for each token id, a pure function of the three arguments."""
    key = _mix(_mix(np.array([seed], np.uint64)) + np.uint64(position))
    bits = _mix(key ^ (ids.astype(np.uint64) * _GOLDEN))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The splitmix64 output function (Steele, Lea and Flood, 2014)."""
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def _adjusts(sampling: SamplingParams) -> bool:
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
    )


def _adjusted(
    logits: Floats, sampling: SamplingParams, token_ids: Sequence[int], answer_start: int
) -> Floats:
    """The logits after penalties and biases."""
    logits = logits.copy()
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(token_ids))
        factor = np.float32(sampling.repetition_penalty)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    if sampling.presence_penalty or sampling.frequency_penalty:
        used, counts = np.unique(np.asarray(token_ids[answer_start:], np.int64), return_counts=True)
        penalty = sampling.presence_penalty + sampling.frequency_penalty * counts
        logits[used] -= penalty.astype(np.float32)
    for token, bias in sampling.logit_bias:
        logits[token] += np.float32(bias)
    return logits


def _candidates(logits: Floats, sampling: SamplingParams) -> tuple[Ids, npt.NDArray[np.float64]]:
    """The token ids that min-p, top-k and top-p leave, with their logits divided by the temperature."""
    with np.errstate(over="ignore"):  # next to no temperature leaves the likeliest alone
        scores = (logits.astype(np.float64) - logits.max()) / sampling.temperature
    ids = np.arange(len(scores))
    if sampling.min_p:
        ids = np.flatnonzero(scores >= scores.max() + math.log(sampling.min_p))
        scores = scores[ids]
    if 0 < sampling.top_k < len(scores):
        kept_ids = np.sort(np.argpartition(-scores, sampling.top_k - 1)[: sampling.top_k])
        ids, scores = ids[kept_ids], scores[kept_ids]
    if sampling.top_p < 1.0:
        order = np.argsort(-scores, kind="stable")
        weights = np.exp(scores[order] - scores[order[0]])
        cumulative = np.cumsum(weights)
        kept = int(np.searchsorted(cumulative, sampling.top_p * cumulative[-1])) + 1
        ids, scores = ids[order[:kept]], scores[order[:kept]]
    return ids, scores
