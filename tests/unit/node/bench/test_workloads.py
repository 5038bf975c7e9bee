"""Workloads: the same from the same seed, and the same as the simulator's."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from node.bench.sessions import Dialogue, Session, TextPrompt, TokenPrompt
from node.bench.workloads import WORKLOADS, BenchError, Model, PlanError, WorkloadOptions, make_sessions
from overlay.sim.routing.calibration import Calibration
from overlay.sim.routing.datasets import read_mmlu, tokens_in
from overlay.sim.routing.workloads import WorkloadOptions as SimOptions
from overlay.sim.routing.workloads import make_workload

MODEL = Model(context_tokens=512, block_size=16, token_ids=range(100, 200))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little of each data set, in its own form."""
    folder = tmp_path_factory.mktemp("data")
    for part in ("mmlu/dev", "mmlu/test", "mooncake", "tau_bench"):
        (folder / part).mkdir(parents=True)
    for number in range(4):
        for kind, rows in (("dev", 5), ("test", 7)):
            with (folder / f"mmlu/{kind}/subject_{number}_{kind}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["question", "choice0", "choice1", "choice2", "choice3", "answer"])
                for row in range(rows):
                    writer.writerow([f"{kind} {number} {'long ' * row}?", "a", "b", "c", "d", row % 4])
    with (folder / "mooncake/conversation_trace.jsonl").open("w") as file:
        for number in range(10):
            blocks = [0, *range(number * 10 + 1, number * 10 + 4)]
            entry = {
                "timestamp": number * 1000,
                "input_length": 2000,
                "output_length": 64,
                "hash_ids": blocks,
            }
            file.write(json.dumps(entry) + "\n")
    said = "user: Hello\nassistant: Hi\nuser: My order?\nassistant: None\ntool: {}\nassistant: Sent.\n"
    for assistant in ("airline", "retail"):
        (folder / f"tau_bench/{assistant}_policy.md").write_text(f"# {assistant} policy\n")
        (folder / f"tau_bench/{assistant}_few_shot.jsonl").write_text(
            json.dumps({"messages_display": said}) + "\n"
        )
    return folder


def options(data: Path | None, requests: int = 8, seed: int = 0) -> WorkloadOptions:
    return WorkloadOptions(nodes=4, requests=requests, skew=1.0, seed=seed, answer_tokens=0, data=data)


def turns(sessions: list[Session]) -> int:
    return sum(len(session.answer_tokens) for session in sessions)


def prompts(sessions: list[Session]) -> list[bytes]:
    return [session.history.request(0, "").SerializeToString() for session in sessions]


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "mooncake-synthetic"])
def test_a_seed_decides_everything(name: str, data: Path) -> None:
    first, again = (make_sessions(name, options(data), MODEL) for _ in range(2))
    assert turns(first) == 8
    assert prompts(first) == prompts(again)
    assert [(s.at, s.entry, s.group) for s in first] == [(s.at, s.entry, s.group) for s in again]
    assert {s.entry for s in first} <= set(range(4))
    assert [s.at for s in first] == sorted(s.at for s in first)
    if not name.startswith("mooncake"):
        assert prompts(first) != prompts(make_sessions(name, options(data, seed=1), MODEL))


def test_mmlu_asks_what_the_simulator_simulates(data: Path) -> None:
    """Same seed, same subjects and questions, entering at the same nodes."""
    simulated = make_workload("mmlu", data, SimOptions(4, 50, 0.6, skew=1.0, seed=3), Calibration())
    sessions = make_sessions("mmlu", options(data, 50, 3), MODEL)
    prefixes = {subject.name: subject.prefix_tokens for subject in read_mmlu(data / "mmlu")}
    assert [s.entry for s in sessions] == [r.entry for r in simulated.requests]
    for session, request in zip(sessions, simulated.requests, strict=True):
        assert isinstance(session.history, TextPrompt)
        question = session.history.text.rpartition("\n\n")[2]
        assert request.tokens == prefixes[session.group] + tokens_in(question)


def test_groups_share_a_prefix_and_nothing_else(data: Path) -> None:
    sessions = make_sessions("shared-prefix", options(data, 60), MODEL)
    by_group: dict[str, list[list[int]]] = {}
    for session in sessions:
        assert isinstance(session.history, TokenPrompt)
        by_group.setdefault(session.group, []).append(list(session.history.token_ids))
    assert len(by_group) > 4
    for tokens in by_group.values():
        assert len({tuple(each[:512]) for each in tokens}) == 1
        assert len({tuple(each) for each in tokens}) == len(tokens)


def test_a_traces_blocks_become_the_nodes_blocks(data: Path) -> None:
    first, second = make_sessions("mooncake-conversation", options(data, 2), MODEL)
    assert isinstance(first.history, TokenPrompt)
    assert isinstance(second.history, TokenPrompt)
    one, two = list(first.history.token_ids), list(second.history.token_ids)
    assert len(one) == 4 * 16 + 1
    assert one[:16] == two[:16]
    assert one[16:32] != two[16:32]
    assert first.answer_tokens == (2,)


def test_a_dialogue_grows_by_its_own_answers() -> None:
    dialogue = Dialogue("Be kind.", ["Hello", "And now?"])
    first = dialogue.request(0, "")
    second = dialogue.request(1, "Hi!")
    assert [m.content for m in first.chat.messages] == ["Be kind.", "Hello"]
    assert [(m.role, m.content) for m in second.chat.messages] == [
        ("system", "Be kind."),
        ("user", "Hello"),
        ("assistant", "Hi!"),
        ("user", "And now?"),
    ]
    assert dialogue.request(0, "") == first


def test_a_dialogue_ends_before_the_context_does(data: Path) -> None:
    small = Model(context_tokens=60, block_size=16, token_ids=range(100, 200))
    assert {len(s.answer_tokens) for s in make_sessions("tau-bench", options(data), small)} == {1}


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("tau-bench", "tau_bench/"),
        ("mooncake-conversation", "mooncake/"),
        ("mooncake-synthetic", "mooncake/"),
    ],
)
def test_missing_data_is_named(name: str, folder: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=folder):
        make_sessions(name, options(None), MODEL)
    with pytest.raises(PlanError, match=folder):
        make_sessions(name, options(tmp_path), MODEL)


def test_damaged_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/conversation_trace.jsonl").write_text("{}\n")
    with pytest.raises(BenchError, match="mooncake-conversation"):
        make_sessions("mooncake-conversation", options(tmp_path), MODEL)


def test_mmlu_needs_no_data() -> None:
    assert len(make_sessions("mmlu", options(None), MODEL)) == 8
