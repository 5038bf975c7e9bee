"""Picking the next token, torch-free.

Noise comes from a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011): a hash of (seed, position, token id), so it depends on nothing else that runs. A token is picked by the
Gumbel-max trick: argmax of logit / temperature + Gumbel noise is a draw from the softmax.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidSamplingError
from engine.interface import SamplingParams

MAX_STOP_TOKEN_IDS = 64
"""Checked on every token; a client has no use for more."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def check_sampling(sampling: SamplingParams, vocabulary_size: int) -> None:
    """Raises InvalidSamplingError for values without a meaning."""
    if sampling.max_tokens < 1:
        raise InvalidSamplingError(f"max_tokens must be at least 1, not {sampling.max_tokens}")
    if not (math.isfinite(sampling.temperature) and 0.0 <= sampling.temperature <= 100.0):
        raise InvalidSamplingError(f"temperature must be between 0 and 100, not {sampling.temperature}")
    if not 0.0 < sampling.top_p <= 1.0:
        raise InvalidSamplingError(f"top_p must be above 0 and at most 1, not {sampling.top_p}")
    if sampling.top_k < 0:
        raise InvalidSamplingError(f"top_k must be 0 (off) or more, not {sampling.top_k}")
    if not 0 <= sampling.seed < 1 << 64:
        raise InvalidSamplingError(f"seed must be an unsigned 64-bit number, not {sampling.seed}")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidSamplingError(
            f"at most {MAX_STOP_TOKEN_IDS} stop_token_ids, not {len(sampling.stop_token_ids)}"
        )
    if any(not 0 <= token < vocabulary_size for token in sampling.stop_token_ids):
        raise InvalidSamplingError(f"stop_token_ids must be below the vocabulary size, {vocabulary_size}")


def sample(logits: Floats, sampling: SamplingParams, position: int) -> int:
    """The token at `position` (0-based, in the whole sequence) given the logits [vocabulary] before it."""
    if sampling.temperature == 0.0:
        return int(logits.argmax())
    ids, scores = _candidates(logits, sampling)
    return int(ids[np.argmax(scores + gumbel(sampling.seed, position, ids))])


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


def _candidates(logits: Floats, sampling: SamplingParams) -> tuple[Ids, npt.NDArray[np.float64]]:
    """The token ids that top-k and top-p leave, with their logits divided by the temperature."""
    scores = logits.astype(np.float64) / sampling.temperature
    ids = np.arange(len(scores))
    if 0 < sampling.top_k < len(scores):
        ids = np.sort(np.argpartition(-scores, sampling.top_k - 1)[: sampling.top_k])
        scores = scores[ids]
    if sampling.top_p < 1.0:
        order = np.argsort(-scores, kind="stable")
        weights = np.exp(scores[order] - scores[order[0]])
        cumulative = np.cumsum(weights)
        kept = int(np.searchsorted(cumulative, sampling.top_p * cumulative[-1])) + 1
        ids, scores = ids[order[:kept]], scores[order[:kept]]
    return ids, scores
