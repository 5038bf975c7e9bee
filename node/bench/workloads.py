"""Workloads for a running mesh, by the names that `rumormill sim routing` knows them by.

All randomness comes from one seed. MMLU draws as the simulator does, so that a seed means the same
questions in the same order, entering at the same nodes, here and there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.bench.sessions import Dialogue, Session, TextPrompt, TokenPrompt
from node.bench.texts import ToolDialogue, read_mmlu, read_tau_bench
from node.demo.workload import Subject, load_subjects
from node.errors import NodeError
from overlay.sim.routing.datasets import CHARACTERS_PER_TOKEN, TraceEntry, read_trace
from overlay.sim.routing.workloads import MMLU_ANSWER_TOKENS, poisson, zipf

TRACE_BLOCK_TOKENS = 512
"""Of the Mooncake traces, made for a large model; here a block of theirs is one block of the node's."""

CONTEXT_SHARE = 0.8
"""A prompt may fill this much of the model's context; a dialogue that grows past it ends."""

DENSE_CHARACTERS_PER_TOKEN = 2
"""Of what tools answer: names, numbers and braces."""

SHARED_PREFIX_GROUPS = 16
SHARED_PREFIX_TOKENS = 512
SHARED_SUFFIX_TOKENS = 64


class BenchError(NodeError):
    """The benchmark can't go on."""


class PlanError(BenchError):
    """It was asked for something that can't be."""


@dataclass(frozen=True, slots=True)
class Model:
    """What prompts are made for: the context and block size in tokens, and token ids that occur in text."""

    context_tokens: int
    block_size: int
    token_ids: Sequence[int]

    def random_tokens(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(self.token_ids, k=count)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """What a workload is made from; `answer_tokens` 0 leaves each workload its own."""

    nodes: int
    requests: int
    skew: float
    seed: int
    answer_tokens: int
    data: Path | None

    def folder(self, name: str, workload: str) -> Path:
        """Raises PlanError."""
        if self.data is None:
            raise PlanError(f"workload {workload} needs --data DIR, a folder with {name}/")
        if not (self.data / name).is_dir():
            raise PlanError(f"--data {self.data} has no folder {name}/, which workload {workload} needs")
        return self.data / name


def make_sessions(name: str, options: WorkloadOptions, model: Model) -> list[Session]:
    """One of WORKLOADS, in order of arrival. Raises BenchError."""
    try:
        return WORKLOADS[name](options, model, random.Random(f"{name}/{options.seed}"))
    except (OSError, ValueError, KeyError) as error:
        raise BenchError(f"the data of {name} can't be read: {error}") from None


def _entries(options: WorkloadOptions) -> Callable[[], int]:
    """Draws entry nodes, evenly."""
    rng = random.Random(f"entries/{options.seed}")
    ranks = list(range(options.nodes))
    rng.shuffle(ranks)
    return lambda: rng.choices(ranks, zipf(options.nodes, 0.0))[0]


def _mmlu(options: WorkloadOptions, model: Model, rng: random.Random) -> list[Session]:
    subjects = load_subjects() if options.data is None else read_mmlu(options.folder("mmlu", "mmlu"))
    return draw_mmlu(subjects, options, rng)


def draw_mmlu(subjects: Sequence[Subject], options: WorkloadOptions, rng: random.Random) -> list[Session]:
    """Few-shot questions; a subject's examples are the shared prefix."""
    entry = _entries(options)
    ranked = rng.sample(list(subjects), len(subjects))
    weights = zipf(len(ranked), options.skew)
    sessions = []
    for at in poisson(rng, options.requests):
        subject = rng.choices(ranked, weights)[0]
        question, _ = rng.choice(subject.questions)
        answer = (options.answer_tokens or MMLU_ANSWER_TOKENS,)
        sessions.append(Session(subject.name, entry(), at, answer, TextPrompt(subject.prefix + question)))
    return sessions


def _unshared(options: WorkloadOptions, model: Model, rng: random.Random) -> list[Session]:
    """The control: as long as MMLU's prompts, and nothing shared."""
    subjects = load_subjects() if options.data is None else read_mmlu(options.folder("mmlu", "unshared"))
    entry = _entries(options)
    sessions = []
    for at in poisson(rng, options.requests):
        subject = rng.choice(list(subjects))
        length = len(subject.prefix) + len(rng.choice(subject.questions)[0])
        tokens = model.random_tokens(rng, max(length // CHARACTERS_PER_TOKEN, 1))
        answer = (options.answer_tokens or MMLU_ANSWER_TOKENS,)
        sessions.append(Session("unshared", entry(), at, answer, TokenPrompt(tokens)))
    return sessions


def _shared_prefix(options: WorkloadOptions, model: Model, rng: random.Random) -> list[Session]:
    """Groups of prompts with a long common start and a short end of their own."""
    entry = _entries(options)
    prefixes = [model.random_tokens(rng, SHARED_PREFIX_TOKENS) for _ in range(SHARED_PREFIX_GROUPS)]
    weights = zipf(len(prefixes), options.skew)
    sessions = []
    for at in poisson(rng, options.requests):
        group = rng.choices(range(len(prefixes)), weights)[0]
        tokens = prefixes[group] + model.random_tokens(rng, SHARED_SUFFIX_TOKENS)
        answer = (options.answer_tokens or 16,)
        sessions.append(Session(f"group {group + 1}", entry(), at, answer, TokenPrompt(tokens)))
    return sessions


def _tau_bench(options: WorkloadOptions, model: Model, rng: random.Random) -> list[Session]:
    return draw_dialogues(read_tau_bench(options.folder("tau_bench", "tau-bench")), options, model, rng)


def draw_dialogues(
    dialogues: Sequence[ToolDialogue], options: WorkloadOptions, model: Model, rng: random.Random
) -> list[Session]:
    """Dialogues of several turns: each prompt is the assistant's policy and all that was said before."""
    entry = _entries(options)
    assistants = sorted({dialogue.assistant for dialogue in dialogues})
    rng.shuffle(assistants)
    weights = zipf(len(assistants), options.skew)
    answer_tokens = options.answer_tokens or 32
    sessions: list[Session] = []
    at, left = 0.0, options.requests
    while left:
        assistant = rng.choices(assistants, weights)[0]
        dialogue = rng.choice([each for each in dialogues if each.assistant == assistant])
        turns = min(_turns_that_fit(dialogue, answer_tokens, model), left)
        at += rng.expovariate(1.0 / turns)
        history = Dialogue(dialogue.policy, dialogue.said)
        sessions.append(Session(assistant, entry(), at, (answer_tokens,) * turns, history))
        left -= turns
    return sessions


def _turns_that_fit(dialogue: ToolDialogue, answer_tokens: int, model: Model) -> int:
    """At least one, however small the context is."""
    room = model.context_tokens * CONTEXT_SHARE - len(dialogue.policy) / CHARACTERS_PER_TOKEN
    turns = 0
    for words in dialogue.said:
        room -= len(words) / DENSE_CHARACTERS_PER_TOKEN + answer_tokens
        if room < 0:
            break
        turns += 1
    return max(turns, 1)


def _conversation(options: WorkloadOptions, model: Model, rng: random.Random) -> list[Session]:
    folder = options.folder("mooncake", "mooncake-conversation")
    return draw_trace(read_trace(folder / "conversation_trace.jsonl"), options, model)


def _synthetic(options: WorkloadOptions, model: Model, rng: random.Random) -> list[Session]:
    folder = options.folder("mooncake", "mooncake-synthetic")
    return draw_trace(read_trace(folder / "synthetic_trace.jsonl"), options, model)


def draw_trace(trace: Sequence[TraceEntry], options: WorkloadOptions, model: Model) -> list[Session]:
    """A trace at its own rhythm, each of its blocks one block of the node's, answers as much shorter."""
    entry = _entries(options)
    trace = trace[: options.requests]
    seconds = max(trace[-1].timestamp_ms - trace[0].timestamp_ms, 1.0)
    scale = TRACE_BLOCK_TOKENS / model.block_size
    most_blocks = int(model.context_tokens * CONTEXT_SHARE) // model.block_size
    sessions = []
    for each in trace:
        tokens = [
            token
            for block in each.hash_ids[:most_blocks]
            for token in model.random_tokens(random.Random(f"block/{block}"), model.block_size)
        ]
        tokens += model.random_tokens(random.Random("end"), 1)
        at = (each.timestamp_ms - trace[0].timestamp_ms) / seconds * len(trace)
        answer = (options.answer_tokens or max(round(each.answer_tokens / scale), 1),)
        sessions.append(Session("trace", entry(), at, answer, TokenPrompt(tokens)))
    return sessions


WORKLOADS: dict[str, Callable[[WorkloadOptions, Model, random.Random], list[Session]]] = {
    "mmlu": _mmlu,
    "mooncake-conversation": _conversation,
    "mooncake-synthetic": _synthetic,
    "tau-bench": _tau_bench,
    "shared-prefix": _shared_prefix,
    "unshared": _unshared,
}
