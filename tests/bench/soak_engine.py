"""Mixed load for as long as asked: aborts, deadlines, preemption, a cache a tenth of the demand.

Ends with an error unless the block accounting holds at every step, memory stays flat, and every answer equals
that of the same request alone, or its beginning where a deadline cut it off.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from engine import Engine
from engine.interface import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenOutput,
)

KV_BLOCKS = 60
DISTINCT_REQUESTS = 60
LIVE_REQUESTS = 12


@dataclass
class Live:
    """A request on its way: which of the known ones it is, and its tokens so far."""

    known: int
    tokens: list[int] = field(default_factory=list)


def main() -> None:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    engine = Engine.load(options.model, kv_blocks=KV_BLOCKS, threads=options.threads)
    requests = [_request(engine, rng) for _ in range(DISTINCT_REQUESTS)]
    expected = [_alone(engine, request) for request in requests]
    live: dict[str, Live] = {}
    counts: Counter[str] = Counter()
    memory: list[int] = []
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends or live:
        if len(live) < LIVE_REQUESTS and time.monotonic() < ends:
            known = rng.randrange(len(requests))
            name = str(counts["started"])
            counts["started"] += 1
            engine.add_request(_dressed(requests[known], name, rng))
            live[name] = Live(known)
        if live and rng.random() < 0.01:
            name = rng.choice(sorted(live))
            engine.abort(name)
            del live[name]
            counts["aborted"] += 1
        for output in engine.step():
            live[output.request_id].tokens += output.token_ids
            if output.finish_reason is not None:
                done = live.pop(output.request_id)
                _judge(done, output, expected[done.known])
                counts["cut off" if output.finish_reason is FinishReason.DEADLINE else "finished"] += 1
        engine.check()
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    if engine.stats.kv_blocks_used:
        raise SystemExit(f"{engine.stats.kv_blocks_used} blocks leaked")
    settled = memory[len(memory) // 3]
    if memory[-1] > settled * 1.05:
        raise SystemExit(f"memory grew from {settled} to {memory[-1]} KiB")
    print(
        f"{counts['finished']} answers equal to those alone, {counts['cut off']} cut off by deadlines as far,"
        f" {counts['aborted']} aborted, {engine.preemptions} preemptions, {memory[-1] >> 10} MiB at most"
    )


def _dressed(request: GenerationRequest, name: str, rng: random.Random) -> GenerationRequest:
    """The request as some client's, in a tenth of the cases with a deadline."""
    return replace(
        request,
        request_id=name,
        client=rng.choice("aaab"),
        priority=rng.randint(LOWEST_PRIORITY, HIGHEST_PRIORITY),
        deadline=time.monotonic() + rng.uniform(0.0, 10.0) if rng.random() < 0.1 else None,
    )


def _judge(done: Live, output: TokenOutput, expected: list[int]) -> None:
    if output.finish_reason is FinishReason.DEADLINE:
        expected = expected[: len(done.tokens)]
    if done.tokens != expected:
        raise SystemExit(f"request {done.known} differs: {done.tokens} not {expected}")


def _request(engine: Engine, rng: random.Random) -> GenerationRequest:
    """A random request: one of a few prefixes, an end of its own, greedy or seeded."""
    family = random.Random(rng.randrange(4))
    prefix = [family.randrange(100, 40_000) for _ in range(rng.choice((0, 64, 128)))]
    end = [rng.randrange(100, 40_000) for _ in range(rng.randrange(1, 60))]
    sampling = SamplingParams(
        max_tokens=rng.randrange(1, 160),
        temperature=rng.choice((0.0, 0.0, 0.8)),
        top_p=0.95,
        seed=rng.randrange(1 << 64),
        ignore_eos=True,
    )
    return GenerationRequest("alone", (*prefix, *end), engine.info.namespace, sampling)


def _alone(engine: Engine, request: GenerationRequest) -> list[int]:
    engine.flush()
    engine.add_request(request)
    tokens: list[int] = []
    while engine.busy:
        for output in engine.step():
            tokens += output.token_ids
    return tokens


if __name__ == "__main__":
    main()
