"""MMLU through the mesh, question by question as transformers answers it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import pytest

from engine.model_files import open_model
from engine.tokenizer import Tokenizer
from node.client import Client
from node.demo.local_mesh import LocalMesh
from rumormill.v1 import inference_pb2
from tests.mmlu import mmlu_exams
from tests.reference import TIE, Reference

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]

QUESTIONS = 10
"""Of each of the 57 subjects."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[LocalMesh]:
    """Two nodes with the checkpoint's weights as they are."""
    options = ["--threads", "1", "--precision", "fp32", "--kv-memory-mib", "512"]
    with LocalMesh(2, options, report=lambda text: None) as local_mesh:
        yield local_mesh


def ask(client: Client, prompt: list[int], letters: list[int]) -> tuple[int, str]:
    """The likeliest letter's index, and who said so."""
    sampling = inference_pb2.Sampling(max_tokens=1, logit_bias=dict.fromkeys(letters, 100.0))
    responses = list(client.generate(prompt, sampling, policy="round-robin"))
    (token,) = [token for response in responses for token in response.token_ids]
    return letters.index(token), responses[-1].route.node


def test_every_question_is_answered_as_transformers_does(mesh: LocalMesh) -> None:
    tokenizer, reference = Tokenizer(open_model("smollm2")), Reference()
    letters = [tokenizer.encode(f"Answer: {letter}")[-1] for letter in "ABCD"]
    asked = right = expected_right = 0
    nodes: set[str] = set()
    differing: list[str] = []
    with mesh.client(0) as client, ThreadPoolExecutor(4) as pool:
        for exam in mmlu_exams(QUESTIONS):
            prompts = [tokenizer.encode(prompt) for prompt, _ in exam]
            expected = reference.last_logits(prompts, letters)
            answers = pool.map(ask, repeat(client), prompts, repeat(letters))
            for (prompt, answer), logits, (said, node) in zip(exam, expected, answers, strict=True):
                nodes.add(node)
                asked += 1
                right += said == answer
                expected_right += int(logits.argmax()) == answer
                if logits.max() - logits[said] > TIE:
                    differing.append(prompt[-200:])
    print(f"\nMMLU, {asked} questions: {right} right through the mesh, {expected_right} by transformers")
    assert asked == 57 * QUESTIONS
    assert not differing
    assert len(nodes) == 2, "both nodes answered"
