"""Requests to simulate, made once and replayed by every policy: who asks what, when, and where.

Blocks are named, not hashed: equal names are equal prefixes. All randomness comes from one seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, zip_longest
from pathlib import Path
from typing import TypeAlias

from overlay.core.types import BlockHash
from overlay.sim.routing.calibration import Calibration
from overlay.sim.routing.datasets import Dialogue, Subject, TraceEntry, read_mmlu, read_tau_bench, read_trace

BLOCK_TOKENS = 16
MMLU_ANSWER_TOKENS = 4
SESSIONS_PER_NODE = 4
"""Dialogues under way at a time, per node: it sets the time between turns."""


class WorkloadError(ValueError):
    """No such workload, or its data is not there."""


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request. `hashes` are the whole blocks of the prompt, `answered` those of prompt and answer.

    The first of a session comes at `at`; one that is `after` another (by its place in the workload) comes
    `pause_s` after the end of that one's answer.
    """

    at: float
    entry: int
    tokens: int
    hashes: Sequence[BlockHash]
    answered: Sequence[BlockHash]
    answer_tokens: int
    after: int | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival, and the engine that they are meant for."""

    name: str
    block_tokens: int
    requests: tuple[SimRequest, ...]

    def oracle_hit_rate(self, skipped: int = 0) -> float:
        """The share of prompt tokens that one common cache without limits would have had.

        The first `skipped` requests fill it, and don't count.
        """
        hits = tokens = 0
        seen: set[BlockHash] = set()
        for number, request in enumerate(self.requests):
            if number >= skipped:
                tokens += request.tokens
                hits += _depth(request.hashes, seen) * self.block_tokens
            seen.update(request.answered)
        return hits / tokens if tokens else 0.0


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """What a workload is made from.

    `load` is the share of the mesh's capacity that it would take with one common cache: above 1
    no routing can keep up. `skew` is the Zipf exponent of what is popular (subjects, assistants; for
    traces and the unshared control, which have no such choice, of the entry nodes); `entry_skew` that of
    the entry nodes. 0 is uniform.
    """

    nodes: int
    requests: int
    load: float
    skew: float = 0.0
    entry_skew: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.requests < 1:
            raise WorkloadError("a workload needs at least one node and one request")
        if self.load <= 0 or min(self.skew, self.entry_skew) < 0:
            raise WorkloadError("the load must be above 0, and no skew below it")


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request before it has a time in seconds: `at` is in the workload's own unit."""

    at: float
    tokens: int
    hashes: Sequence[BlockHash]
    answered: Sequence[BlockHash]
    answer_tokens: int
    session: int | None = None  # turns of one session enter at one node, one after the other
    pause: float = 0.0


Drafts: TypeAlias = list[_Draft]


def make_workload(name: str, data: Path, options: WorkloadOptions, calibration: Calibration) -> Workload:
    """One of WORKLOADS, from the files under `data`, timed for `calibration`. Raises WorkloadError."""
    if name not in WORKLOADS:
        raise WorkloadError(f"unknown workload {name!r}; choose one of {', '.join(WORKLOADS)}")
    kind = WORKLOADS[name]
    try:
        drafts = kind.draft(data, options, random.Random(f"{name}/{options.seed}"))
    except OSError as error:
        raise WorkloadError(f"the data of {name} can't be read: {error}") from None
    return _timed(name, kind, drafts, options, calibration)


def _timed(
    name: str, kind: Kind, drafts: Drafts, options: WorkloadOptions, calibration: Calibration
) -> Workload:
    """Stretches a workload's own time until it is the load that was asked for, and picks entry nodes."""
    rng = random.Random(f"entries/{options.seed}")
    skew = options.entry_skew or (0.0 if kind.has_popularity else options.skew)
    ranks = list(range(options.nodes))
    rng.shuffle(ranks)
    weights = zipf(options.nodes, skew)
    span = max(draft.at for draft in drafts) or 1.0
    work = _best_work_s(drafts, kind.block_tokens, calibration)
    scale = work / (options.nodes * options.load) / span
    latest: dict[int, int] = {}
    requests: list[SimRequest] = []
    for draft in drafts:
        entry = rng.choices(ranks, weights)[0]
        after = None
        if draft.session is not None:
            after = latest.get(draft.session)
            latest[draft.session] = len(requests)
        requests.append(
            SimRequest(
                at=draft.at * scale,
                entry=entry if after is None else requests[after].entry,
                tokens=draft.tokens,
                hashes=draft.hashes,
                answered=draft.answered,
                answer_tokens=draft.answer_tokens,
                after=after,
                pause_s=draft.pause * scale,
            )
        )
    return Workload(name, kind.block_tokens, tuple(requests))


def _best_work_s(drafts: Drafts, block_tokens: int, calibration: Calibration) -> float:
    """Seconds of one engine for all prompts and answers, with one common cache and half-full batches."""
    seen: set[BlockHash] = set()
    computed = answered = 0
    for draft in drafts:
        computed += draft.tokens - _depth(draft.hashes, seen) * block_tokens
        answered += draft.answer_tokens
        seen.update(draft.answered)
    batch = max(calibration.max_running // 2, 1)
    decode_s = calibration.decode_step_s(batch) / batch
    return computed * calibration.seconds_per_prefill_token + answered * decode_s


def _depth(hashes: Sequence[BlockHash], seen: set[BlockHash]) -> int:
    depth = 0
    for block in hashes:
        if block not in seen:
            break
        depth += 1
    return depth


def zipf(ranks: int, exponent: float) -> list[float]:
    """Weights of ranks 1 to `ranks`."""
    return [1.0 / rank**exponent for rank in range(1, ranks + 1)]


class _Names:
    """Block names, never the same twice unless asked for by the same key."""

    def __init__(self) -> None:
        self._next = 1
        self._runs: dict[str, list[BlockHash]] = {}

    def fresh(self, blocks: int) -> list[BlockHash]:
        """Blocks that nothing else has."""
        first, self._next = self._next, self._next + blocks
        return [BlockHash(number) for number in range(first, self._next)]

    def run(self, key: str, blocks: int) -> list[BlockHash]:
        """The leading blocks of a text that `key` stands for."""
        known = self._runs.setdefault(key, [])
        known += self.fresh(max(blocks - len(known), 0))
        return known[:blocks]


def poisson(rng: random.Random, arrivals: int) -> Iterator[float]:
    """Arrival times of a Poisson process of rate 1."""
    return accumulate(rng.expovariate(1.0) for _ in range(arrivals))


def _draft_mmlu(data: Path, options: WorkloadOptions, rng: random.Random) -> Drafts:
    return draft_mmlu(read_mmlu(data / "mmlu"), options, rng)


def draft_mmlu(subjects: Sequence[Subject], options: WorkloadOptions, rng: random.Random) -> Drafts:
    """Few-shot questions: the subject's examples are the shared prefix, the question is new."""
    names = _Names()
    ranked = rng.sample(list(subjects), len(subjects))
    weights = zipf(len(ranked), options.skew)
    drafts = []
    for at in poisson(rng, options.requests):
        subject = rng.choices(ranked, weights)[0]
        question = rng.choice(subject.question_tokens)
        tokens = subject.prefix_tokens + question
        shared = names.run(subject.name, subject.prefix_tokens // BLOCK_TOKENS)
        answered = shared + names.fresh((tokens + MMLU_ANSWER_TOKENS) // BLOCK_TOKENS - len(shared))
        drafts.append(_Draft(at, tokens, answered[: tokens // BLOCK_TOKENS], answered, MMLU_ANSWER_TOKENS))
    return drafts


def _draft_unshared(data: Path, options: WorkloadOptions, rng: random.Random) -> Drafts:
    """The control: as long as MMLU's prompts, and nothing shared."""
    names = _Names()
    subjects = read_mmlu(data / "mmlu")
    drafts = []
    for at in poisson(rng, options.requests):
        subject = rng.choice(subjects)
        tokens = subject.prefix_tokens + rng.choice(subject.question_tokens)
        answered = names.fresh((tokens + MMLU_ANSWER_TOKENS) // BLOCK_TOKENS)
        drafts.append(_Draft(at, tokens, answered[: tokens // BLOCK_TOKENS], answered, MMLU_ANSWER_TOKENS))
    return drafts


def _draft_tau_bench(data: Path, options: WorkloadOptions, rng: random.Random) -> Drafts:
    return draft_dialogues(read_tau_bench(data / "tau_bench"), options, rng)


def draft_dialogues(dialogues: Sequence[Dialogue], options: WorkloadOptions, rng: random.Random) -> Drafts:
    """Sessions of several turns: each prompt is the assistant's policy and all that was said before."""
    names = _Names()
    assistants = sorted({dialogue.assistant for dialogue in dialogues})
    rng.shuffle(assistants)
    weights = zipf(len(assistants), options.skew)
    drafts: Drafts = []
    gap = SESSIONS_PER_NODE * options.nodes
    at = 0.0
    for session in count():
        if len(drafts) >= options.requests:
            break
        assistant = rng.choices(assistants, weights)[0]
        dialogue = rng.choice([each for each in dialogues if each.assistant == assistant])
        at += rng.expovariate(1.0 / len(dialogue.turns))
        drafts += _session(dialogue, at, gap, session, names, rng)
    drafts.sort(key=lambda draft: draft.at)
    return drafts[: options.requests]


def _session(
    dialogue: Dialogue, at: float, gap: float, session: int, names: _Names, rng: random.Random
) -> Drafts:
    policy = names.run(dialogue.assistant, dialogue.policy_tokens // BLOCK_TOKENS)
    tokens = dialogue.policy_tokens + dialogue.turns[0].asked_tokens
    own: list[BlockHash] = []
    drafts = []
    for index, turn in enumerate(dialogue.turns):
        pause = rng.expovariate(1.0 / gap) if index else 0.0
        at += pause
        if index:
            tokens += turn.asked_tokens
        whole = (tokens + turn.answer_tokens) // BLOCK_TOKENS - len(policy)
        own = own + names.fresh(max(whole - len(own), 0))
        answered = policy + own
        prompt = answered[: tokens // BLOCK_TOKENS]
        drafts.append(_Draft(at, tokens, prompt, answered, turn.answer_tokens, session, pause))
        tokens += turn.answer_tokens
    return drafts


def _draft_conversation(data: Path, options: WorkloadOptions, rng: random.Random) -> Drafts:
    return draft_trace(read_trace(data / "mooncake" / "conversation_trace.jsonl"), options.requests)


def _draft_synthetic(data: Path, options: WorkloadOptions, rng: random.Random) -> Drafts:
    return draft_trace(read_trace(data / "mooncake" / "synthetic_trace.jsonl"), options.requests)


TRACE_BLOCK_TOKENS = 512


def draft_trace(trace: Sequence[TraceEntry], requests: int) -> Drafts:
    """A trace at its own pace. Its last, partly filled blocks count as whole, as in its own figures.

    Its clock ticks every three seconds: those who share a tick are spread over the time to the next.
    """
    trace = trace[:requests]
    return [
        _Draft(
            at,
            len(entry.hash_ids) * TRACE_BLOCK_TOKENS + 1,
            entry.hash_ids,
            entry.hash_ids,
            max(entry.answer_tokens, 1),
        )
        for at, entry in zip(
            _spread_ticks([entry.timestamp_ms / 1000 for entry in trace]), trace, strict=True
        )
    ]


def _spread_ticks(times: Sequence[float]) -> list[float]:
    """Times, none of them falling, with equal ones spread evenly up to the next."""
    ticks = sorted(Counter(times).items())
    spread: list[float] = []
    for (at, shared), following in zip_longest(ticks, [at for at, _ in ticks[1:]]):
        gap = (at if following is None else following) - at
        spread += [at + gap * number / shared for number in range(shared)]
    return spread


@dataclass(frozen=True, slots=True)
class Kind:
    """How a workload is made. Traces are of a large model; `skew` needs something to be popular."""

    draft: Callable[[Path, WorkloadOptions, random.Random], Drafts]
    block_tokens: int = BLOCK_TOKENS
    calibration: Callable[[], Calibration] = Calibration
    has_popularity: bool = True


WORKLOADS: dict[str, Kind] = {
    "mmlu": Kind(_draft_mmlu),
    "mooncake-conversation": Kind(
        _draft_conversation, TRACE_BLOCK_TOKENS, Calibration.datacenter, has_popularity=False
    ),
    "mooncake-synthetic": Kind(
        _draft_synthetic, TRACE_BLOCK_TOKENS, Calibration.datacenter, has_popularity=False
    ),
    "tau-bench": Kind(_draft_tau_bench),
    "unshared": Kind(_draft_unshared, has_popularity=False),
}
