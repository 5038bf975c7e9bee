"""Decode steps as CUDA graphs: one replay in place of hundreds of launches.

A graph is bound to its addresses and shape, so there is one for each batch size of a short list; a batch is
padded to the next one with rows that write to a block nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from engine.cuda.step import Ints, Step, StepShape, pack_step
from engine.span import Span

LARGEST_BATCH: Final = 256
"""More streams than that are computed without a graph; the GPU is busy enough by then."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]
"""Records what a function does on the device, once it has run there; calling the result does it again."""


def batch_sizes(most: int) -> list[int]:
    """Powers of two up to `most`, and `most` itself."""
    most = min(most, LARGEST_BATCH)
    return [1 << power for power in range(most.bit_length()) if 1 << power < most] + [most]


class DecodeGraphs:
    """The graphs of every batch size, all on the same input buffer.

    `longest`: most tokens of a sequence. `spare_block`: a KV block that belongs to no sequence.
    """

    def __init__(
        self,
        forward: Callable[[Step], Tensor],
        capture: Capture,
        device: torch.device,
        *,
        most: int,
        longest: int,
        block_size: int,
        tile_tokens: int,
        spare_block: int,
    ) -> None:
        self._block_size = block_size
        self._tile_tokens = tile_tokens
        self._padding = Span(0, 1, (spare_block,))
        self._sizes = batch_sizes(most)
        largest = self._pack([], [], self._sizes[-1])
        blocks = -(-longest // block_size)
        self._ints = torch.zeros(
            largest[1].offsets()["tables"][0] + self._sizes[-1] * blocks, dtype=torch.int32, device=device
        )
        self._logits: dict[int, Tensor] = {}
        self._replays: dict[int, Replay] = {}
        for size in reversed(self._sizes):
            ints, shape = self._pack([], [], size)
            self._fill(ints)
            step = Step(self._ints, shape, block_size=block_size, tile_tokens=tile_tokens, longest=longest)
            self._replays[size] = capture(self._storing(forward, step, size))

    def fits(self, spans: Sequence[Span], rows: Sequence[int]) -> bool:
        """Whether a step is one token of each of not too many sequences, all sampled."""
        return len(rows) == len(spans) <= self._sizes[-1] and all(span.count == 1 for span in spans)

    def run(self, token_ids: Sequence[int], spans: Sequence[Span]) -> Tensor:
        """The logits [len(spans), vocabulary] of a step that fits."""
        size = next(size for size in self._sizes if size >= len(spans))
        ints, _ = self._pack(token_ids, spans, size)
        self._fill(ints)
        self._replays[size]()
        return self._logits[size][: len(spans)].clone()

    def _storing(self, forward: Callable[[Step], Tensor], step: Step, size: int) -> Callable[[], None]:
        def run() -> None:
            self._logits[size] = forward(step)

        return run

    def _pack(self, token_ids: Sequence[int], spans: Sequence[Span], size: int) -> tuple[Ints, StepShape]:
        missing = size - len(spans)
        return pack_step(
            [*token_ids, *[0] * missing],
            [*spans, *[self._padding] * missing],
            range(size),
            block_size=self._block_size,
            tile_tokens=self._tile_tokens,
        )

    def _fill(self, ints: Ints) -> None:
        host = torch.from_numpy(ints)
        if self._ints.device.type == "cuda":
            host = host.pin_memory()
        self._ints[: len(ints)].copy_(host, non_blocking=True)


class CudaCapture:
    """Captures into graphs that share one pool of memory: only one runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Callable[[], None]) -> Replay:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch lacks the annotation
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # compiles kernels and lets libraries allocate, which a capture can't
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        self._pool = self._pool or graph.pool()
        replay: Replay = graph.replay
        return replay
