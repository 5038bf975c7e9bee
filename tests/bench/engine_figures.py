"""What every engine under measurement is asked, how its answer gives a figure, and what must be reached."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

NEW_TOKENS = 32
VOCABULARY = range(100, 40_000)

Prompt = tuple[int, ...]
Ask = Callable[["Task"], list[float]]


@dataclass(frozen=True)
class Task:
    """Prompts to answer at once; `late` ones join when the first answer is half done."""

    prompts: tuple[Prompt, ...]
    new_tokens: int
    forget: bool = True
    late: tuple[Prompt, ...] = ()


@dataclass(frozen=True)
class Figure:
    """One thing to measure. `goals`: the least ratio to each baseline; `limit`: the most it may be."""

    name: str
    unit: str
    measure: Callable[[Ask], float]
    goals: Mapping[str, float] = field(default_factory=dict)
    limit: float | None = None
    only: str = ""

    @property
    def higher_is_better(self) -> bool:
        """Rates are; times aren't."""
        return self.unit == "tokens/s"


def figures() -> list[Figure]:
    """The questions of one round; their goals are issue 3's."""
    rng = random.Random(1)

    def tokens(count: int) -> Prompt:
        return tuple(rng.choice(VOCABULARY) for _ in range(count))

    shared, long = tokens(192), tokens(2048)
    prefill_goals = {"transformers fp32": 1.1, "vllm fp32": 1.1, "llama.cpp Q4_0": 1.2, "llama.cpp F16": 2.5}
    return [
        _prefill(tokens(512), prefill_goals),
        _prefill(long, prefill_goals),
        _repeated(long),
        _decode([tokens(48)], {"llama.cpp F16": 1.0, "transformers fp32": 3.5}),
        _decode([tokens(48) for _ in range(8)], {"llama.cpp Q4_0": 1.0, "vllm fp32": 1.7}),
        _decode([tokens(48) for _ in range(16)], {"llama.cpp Q4_0": 1.3, "vllm fp32": 1.6}),
        _shared_prefix([shared + tokens(64) for _ in range(16)]),
        _stall([tokens(48) for _ in range(8)], tokens(4096)),
    ]


def _prefill(prompt: Prompt, goals: Mapping[str, float]) -> Figure:
    def measure(ask: Ask) -> float:
        return len(prompt) / ask(Task((prompt,), 1))[-1]

    return Figure(f"prefill {len(prompt)}", "tokens/s", measure, goals)


def _repeated(prompt: Prompt) -> Figure:
    """The time to the first token of a prompt that was answered just before."""

    def measure(ask: Ask) -> float:
        ask(Task((prompt,), 1))
        return 1000 * ask(Task((prompt,), 1, forget=False))[-1]

    goals = {"llama.cpp F16": 1.0, "llama.cpp Q8_0": 1.0, "llama.cpp Q4_0": 1.0}
    return Figure(f"first token of {len(prompt)} repeated", "ms", measure, goals)


def _decode(prompts: Sequence[Prompt], goals: Mapping[str, float]) -> Figure:
    """The difference of two runs, so that the prompts don't count."""

    def measure(ask: Ask) -> float:
        whole = ask(Task(tuple(prompts), NEW_TOKENS))[-1]
        alone = ask(Task(tuple(prompts), 1))[-1]
        return len(prompts) * (NEW_TOKENS - 1) / max(whole - alone, 1e-9)

    return Figure(f"decode {len(prompts)}", "tokens/s", measure, goals)


def _shared_prefix(prompts: Sequence[Prompt]) -> Figure:
    def measure(ask: Ask) -> float:
        return ask(Task(tuple(prompts), NEW_TOKENS))[-1]

    goals = {"vllm fp32": 1 / 0.6, "llama.cpp Q4_0": 1 / 0.3, "llama.cpp Q8_0": 1 / 0.3}
    return Figure("shared prefix 16 x (192 + 64)", "s", measure, goals)


def _stall(streams: Sequence[Prompt], late: Prompt) -> Figure:
    """The longest wait of a running stream for a token beside a long prompt, in its usual steps."""
    before = 24

    def measure(ask: Ask) -> float:
        times = ask(Task(tuple(streams), 8 * before, late=(late,)))[:-1]
        waits = [after - earlier for earlier, after in itertools.pairwise(times)]
        return max(waits[before:]) / statistics.median(waits[: before - 4])

    return Figure(
        f"longest wait beside a prompt of {len(late)}", "steps", measure, limit=3.0, only="rumormill"
    )
