"""Programs that people have already, unchanged, against a node."""

from __future__ import annotations

import csv
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import run
from tests.mmlu import MMLU

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
LETTERS = "ABCD"

TASK = {
    "task": "mmlu_local",
    "dataset_path": "csv",
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "{{question}}\nA. {{choice0}}\nB. {{choice1}}\nC. {{choice2}}\nD. {{choice3}}\nAnswer:",
    "doc_to_choice": list(LETTERS),
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def complete(url: str, **body: Any) -> Any:
    data = json.dumps({"model": "smollm2", "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{url}/completions", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_llm(url: str, tmp_path: Path) -> None:
    config = f"- model_id: mesh\n  model_name: smollm2\n  api_base: {url}\n"
    (tmp_path / "extra-openai-models.yaml").write_text(config)
    options = ("-m", "mesh", "-o", "temperature", "0", "-o", "max_tokens", "16")
    streamed = run(".venv-clients", "llm", "Name a planet.", *options, LLM_USER_PATH=str(tmp_path))
    whole = run(
        ".venv-clients", "llm", "Name a planet.", *options, "--no-stream", LLM_USER_PATH=str(tmp_path)
    )
    assert streamed == whole
    assert len(streamed) > 20


def test_langchain(url: str) -> None:
    answer = json.loads(run(".venv-clients", "python", str(HERE / "langchain_chat.py"), url))
    assert answer["whole"] == answer["streamed"] != ""
    assert answer["person"]["age"] == 36
    assert 0 < answer["usage"]["output_tokens"] <= 24


def test_lm_evaluation_harness(url: str, tokenizer: Path, tmp_path: Path) -> None:
    """Its accuracy on MMLU questions is that of asking for the likeliest letter directly."""
    with (MMLU / "test" / "anatomy_test.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:8]
    data = tmp_path / "questions.csv"
    with data.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (tmp_path / "mmlu_local.yaml").write_text(json.dumps(task))  # JSON is YAML
    arguments = f"model=smollm2,base_url={url}/completions,tokenizer={tokenizer},num_concurrent=2"
    run(
        ".venv-lm-eval",
        "lm_eval",
        *("--model", "local-completions", "--model_args", arguments, "--tasks", "mmlu_local"),
        *("--include_path", str(tmp_path), "--batch_size", "4", "--output_path", str(tmp_path / "out")),
    )
    (report,) = (tmp_path / "out").rglob("results_*.json")
    accuracy = json.loads(report.read_text())["results"]["mmlu_local"]["acc,none"]
    assert accuracy == pytest.approx(sum(answers_rightly(url, row) for row in rows) / len(rows))


def answers_rightly(url: str, row: dict[str, str]) -> bool:
    choices = "".join(f"{letter}. {row[f'choice{index}']}\n" for index, letter in enumerate(LETTERS))
    scores = []
    for letter in LETTERS:
        prompt = f"{row['question']}\n{choices}Answer: {letter}"
        answer = complete(url, prompt=prompt, max_tokens=0, echo=True, logprobs=0)
        scores.append(answer["choices"][0]["logprobs"]["token_logprobs"][-1])
    return scores.index(max(scores)) == int(row["answer"])


def test_vllm_bench_serve(url: str, tokenizer: Path, tmp_path: Path) -> None:
    base = url.removesuffix("/v1")
    run(
        ".venv-vllm",
        "python",
        str(HERE / "vllm_bench.py"),
        *("--base-url", base, "--endpoint", "/v1/completions", "--model", "smollm2"),
        *("--tokenizer", str(tokenizer), "--dataset-name", "random", "--random-input-len", "64"),
        *("--random-output-len", "16", "--num-prompts", "8", "--request-rate", "4"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"),
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 8
    assert result["total_output_tokens"] == 8 * 16
