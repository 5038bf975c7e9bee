"""One engine under measurement, in a process of its own: JSON lines in on stdin, out on stdout.

Each contender is measured alike, from outside its API: token ids in, greedy tokens out. Only `rumormill` and
`transformers` need this project's environment. A new one is a class with `run` and `forget`, in CONTENDERS.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

Prompts = Sequence[Sequence[int]]


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

    def run(self, prompts: Prompts, new_tokens: int) -> list[float]:
        from engine.interface import GenerationRequest, SamplingParams

        sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        started = time.perf_counter()
        for index, prompt in enumerate(prompts):
            request = GenerationRequest(str(index), tuple(prompt), self._engine.info.namespace, sampling)
            self._engine.add_request(request)
        times = []
        while self._engine.busy:
            outputs = self._engine.step()
            now = time.perf_counter() - started
            times += [now for output in outputs if output.request_id == "0"]
        return [*times[:-1], time.perf_counter() - started]

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
        import xllamacpp  # type: ignore[import-not-found]  # installed only to be measured

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


CONTENDERS: dict[str, Callable[[str, str, int], Contender]] = {
    "rumormill": Rumormill,
    "transformers": Transformers,
    "llama.cpp": LlamaCpp,
}


def main() -> None:
    """Loads the contender named on the command line and serves its measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=sorted(CONTENDERS))
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    contender = CONTENDERS[options.contender](options.model, options.precision, options.threads)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task["forget"]:
            contender.forget()
        times = contender.run(task["prompts"], task["new_tokens"])
        print(json.dumps({"times": times}), flush=True)


if __name__ == "__main__":
    main()
