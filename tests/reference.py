"""transformers' fp32 model on the embedded file: what is right, and how wrong something else is."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Final

import torch
from transformers import AutoModelForCausalLM

from engine.model_source import resolve_model

TIE: Final = 1e-3
"""Where the reference's two best logits are closer than this, either token is right."""


class Reference:
    """Writes greedy answers, and judges whole ones by one forward pass each."""

    def __init__(self) -> None:
        path = resolve_model("smollm2").path
        self._model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        self._judged: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}

    def answer(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """The greedy continuation, whatever ends answers otherwise."""
        self._model.generation_config.eos_token_id = None
        ids = torch.tensor([list(prompt)])
        whole = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False
        )
        answer: list[int] = whole[0, len(prompt) :].tolist()
        return answer

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Log-probabilities [len(token_ids), vocabulary] of what follows each token."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([list(token_ids)])).logits[0]
        return logits.log_softmax(dim=-1)

    def last_logits(self, prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> torch.Tensor:
        """Logits [len(prompts), len(tokens)] after each prompt; what all begin with is computed once."""
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
        rows = []
        with torch.inference_mode():
            begun = self._model(torch.tensor([prompts[0][:shared]]), use_cache=True).past_key_values
            for prompt in prompts:
                rest = torch.tensor([prompt[shared:]])
                cache = copy.deepcopy(begun)
                logits = self._model(rest, past_key_values=cache, logits_to_keep=1).logits[0, -1]
                rows.append(logits[list(tokens)])
        return torch.stack(rows)

    def errors(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """How far each token that isn't the reference's choice is from it in logits; empty when all agree.

        If every token is the best continuation of those before it, the answer is the greedy one.
        """
        key = (tuple(prompt), tuple(answer))
        if key not in self._judged:
            with torch.inference_mode():
                logits = self._model(
                    torch.tensor([[*prompt, *answer[:-1]]]), logits_to_keep=len(answer)
                ).logits[0]
            best = logits.max(dim=-1).values
            chosen = logits[torch.arange(len(answer)), torch.tensor(answer)]
            self._judged[key] = [gap for gap in (best - chosen).tolist() if gap > 0]
        return self._judged[key]
