"""One engine under measurement, in a process of its own: JSON lines in on stdin, out on stdout.

Each contender is measured alike, from outside its API: token ids in, greedy tokens out. `rumormill` and
`transformers` need this project's environment, the others one of their own. A new one is a class with `run`
and `forget`, in CONTENDERS.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

Prompts = Sequence[Sequence[int]]

LATE_AFTER = 24
"""Tokens of the first answer after which late prompts join."""


class Contender(Protocol):
    """An engine that is loaded."""

    def run(self, prompts: Prompts, new_tokens: int) -> list[float]:
        """Answers all prompts at once; returns when each token of the first answer came, in seconds."""

    def forget(self) -> None:
        """Empties the prefix cache, if there is one."""


class Rumormill:
    """This project's engine."""

    def __init__(self, model: str, precision: str, threads: int) -> None:
        from engine import Engine

        self._engine = Engine.load(
            model, precision=precision, threads=threads, prefill_tokens_per_step=512, max_running=64
        )

    def run(self, prompts: Prompts, new_tokens: int, late: Prompts = ()) -> list[float]:
        started = time.perf_counter()
        self._add(prompts, new_tokens, "")
        times: list[float] = []
        while self._engine.busy:
            outputs = self._engine.step()
            now = time.perf_counter() - started
            times += [now for output in outputs if output.request_id == "0"]
            if late and len(times) >= LATE_AFTER:
                self._add(late, 1, "late ")
                late = ()
        return [*times[:-1], time.perf_counter() - started]

    def _add(self, prompts: Prompts, new_tokens: int, prefix: str) -> None:
        from engine.interface import GenerationRequest, SamplingParams

        sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            name = f"{prefix}{index}"
            self._engine.add_request(
                GenerationRequest(name, tuple(prompt), self._engine.info.namespace, sampling)
            )

    def forget(self) -> None:
        self._engine.flush()


class Transformers:
    """`generate` in fp32, prompts of equal length as one batch."""

    def __init__(self, model: str, precision: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from engine.model_source import resolve_model

        torch.set_num_threads(threads)
        path = resolve_model(model).path
        self._model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=getattr(torch, {"fp32": "float32"}[precision])
        )

    def run(self, prompts: Prompts, new_tokens: int) -> list[float]:
        import torch
        from transformers.generation.streamers import BaseStreamer

        times: list[float] = []
        started = time.perf_counter()

        class Clock(BaseStreamer):  # type: ignore[misc]  # transformers is untyped
            def put(self, value: Any) -> None:
                times.append(time.perf_counter() - started)

            def end(self) -> None:
                """Nothing to close."""

        batch = torch.tensor([list(prompt) for prompt in prompts])
        self._model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            streamer=Clock() if len(prompts) == 1 else None,
        )
        whole = time.perf_counter() - started
        return [*times[1:-1], whole] if times else [whole]

    def forget(self) -> None:
        """It keeps nothing."""


class LlamaCpp:
    """llama.cpp's server, in process, through `xllamacpp`; `precision` says what the file holds."""

    def __init__(self, model: str, precision: str, threads: int) -> None:
        import xllamacpp  # installed only to be measured

        options = xllamacpp.CommonParams()
        options.model.path = model
        options.n_parallel = 16
        options.n_ctx = 16 * 2560
        options.n_gpu_layers = 0
        options.verbosity = -1
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(options)
        self._reuse = True

    def run(self, prompts: Prompts, new_tokens: int) -> list[float]:
        times: list[list[float]] = [[] for _ in prompts]
        started = time.perf_counter()

        def answer(index: int) -> None:
            task = {
                "prompt": list(prompts[index]),
                "max_tokens": new_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "cache_prompt": self._reuse,
            }
            self._server.handle_completions(
                task, lambda _: times[index].append(time.perf_counter() - started)
            )

        with ThreadPoolExecutor(len(prompts)) as pool:
            list(pool.map(answer, range(len(prompts))))
        self._reuse = True
        return [*times[0][:new_tokens][:-1], time.perf_counter() - started]

    def forget(self) -> None:
        self._reuse = False


class ContinuousBatching:
    """transformers' `generate_batch` on paged attention."""

    def __init__(self, model: str, precision: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig

        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, {"fp32": "float32"}[precision]), attn_implementation="sdpa"
        )
        self._batching = ContinuousBatchingConfig(page_size=16, num_blocks=1024, max_batch_tokens=512)

    def run(self, prompts: Prompts, new_tokens: int) -> list[float]:
        from transformers import GenerationConfig

        config = GenerationConfig(max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False)
        started = time.perf_counter()
        self._model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=config,
            continuous_batching_config=self._batching,
            warmup=False,
        )
        return [time.perf_counter() - started]

    def forget(self) -> None:
        """Each call of `generate_batch` starts with an empty cache."""


class VLLM:
    """vLLM's CPU build, in process, compiled."""

    def __init__(self, model: str, precision: str, threads: int) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{threads - 1}"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM  # installed only to be measured

        self._model = LLM(
            model=model,
            dtype={"fp32": "float32"}[precision],
            block_size=32,
            max_num_seqs=64,
            max_model_len=4096,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )

    def run(self, prompts: Prompts, new_tokens: int) -> list[float]:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        started = time.perf_counter()
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        self._model.generate(asked, sampling, use_tqdm=False)
        return [time.perf_counter() - started]

    def forget(self) -> None:
        self._model.reset_prefix_cache()


CONTENDERS: dict[str, Callable[[str, str, int], Any]] = {
    "rumormill": Rumormill,
    "transformers": Transformers,
    "transformers-continuous": ContinuousBatching,
    "llama.cpp": LlamaCpp,
    "vllm": VLLM,
}


def main() -> None:
    """Loads the contender named on the command line and serves its measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=sorted(CONTENDERS))
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints must not come between the answers
    contender = CONTENDERS[options.contender](options.model, options.precision, options.threads)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task["forget"]:
            contender.forget()
        late = {"late": task["late"]} if task["late"] else {}
        times = contender.run(task["prompts"], task["new_tokens"], **late)
        print(json.dumps({"times": times}), file=answers, flush=True)


if __name__ == "__main__":
    main()
