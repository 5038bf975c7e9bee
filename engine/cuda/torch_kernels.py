"""The kernels in plain PyTorch: they run on any device, and Triton's are tested against them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.cuda.kernels import Attend, HeadNorms
from engine.cuda.step import Step
from engine.model import RotaryTable, rotate
from engine.model_config import ModelConfig


class TorchKernels:
    """Kernels of one model; see Kernels."""

    name = "torch"
    capturable = False

    def __init__(self, config: ModelConfig, rotary: RotaryTable, dtype: torch.dtype) -> None:
        self._config = config
        self._rotary = rotary
        self._dtype = dtype

    def tile_tokens(self, longest: int) -> int:
        return longest

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
        if delta is not None:
            x = x + delta
        return x, self._norm(x, weight).to(self._dtype)

    def rotate_and_store(
        self, qkv: Tensor, norms: HeadNorms | None, step: Step, keys: Tensor, values: Tensor
    ) -> Tensor:
        config = self._config
        parts = torch.split(qkv, [config.query_size, config.kv_size, config.kv_size], dim=-1)
        query, key, value = (part.view(len(part), -1, config.head_dim) for part in parts)
        query, key = query.float(), key.float()
        if norms is not None:
            query, key = self._norm(query, norms.query), self._norm(key, norms.key)
        cos, sin = self._rotary.at(step.positions)
        slots = step.slots.long()
        keys.index_copy_(0, slots, rotate(key, cos, sin).to(self._dtype))
        values.index_copy_(0, slots, value)
        return rotate(query, cos, sin).to(self._dtype)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(self._dtype)

    def attention(self, step: Step) -> Attend:
        return _Attention(step, self._config.heads // self._config.kv_heads)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._config.norm_epsilon)


class _Attention:
    """Streams are padded to the longest and computed together, prompts one by one."""

    def __init__(self, step: Step, share: int) -> None:
        self._share = share
        self._device = step.lengths.device
        self._step = step
        computed, lengths = step.computed.tolist(), step.lengths.tolist()
        counts = [length - before for before, length in zip(computed, lengths, strict=True)]
        streams = [index for index, count in enumerate(counts) if count == 1]
        groups = [streams] if streams else []
        groups += [[index] for index, count in enumerate(counts) if count > 1]
        self._groups = [
            self._group(members, counts[members[0]], max(lengths[index] for index in members))
            for members in groups
        ]

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, window: int) -> Tensor:
        result = torch.empty(queries.shape, dtype=queries.dtype, device=self._device)
        for rows, slots, positions in self._groups:
            seen = torch.arange(slots.shape[1], device=self._device)
            allowed = seen <= positions[:, :, None]
            if window:
                allowed &= seen > positions[:, :, None] - window
            chosen = queries[rows].transpose(1, 2)
            output = functional.scaled_dot_product_attention(
                chosen,
                keys[slots].transpose(1, 2).repeat_interleave(self._share, 1),
                values[slots].transpose(1, 2).repeat_interleave(self._share, 1),
                attn_mask=allowed[:, None],
            )
            result[rows] = output.transpose(1, 2)
        return result.flatten(1)

    def _group(self, members: list[int], count: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [n, count], key slots [n, longest] and positions [n, count] of equally many new tokens.

        Keys past a sequence's own end repeat its last one; they are masked.
        """
        step = self._step
        chosen = torch.tensor(members, device=self._device)
        new = torch.arange(count, device=self._device)
        last = step.lengths[chosen].long()[:, None] - 1
        place = torch.minimum(torch.arange(longest, device=self._device)[None], last)
        blocks = step.tables[step.table_starts[chosen].long()[:, None] + place // step.block_size].long()
        slots = blocks * step.block_size + place % step.block_size
        rows = step.first_rows[chosen].long()[:, None] + new
        return rows, slots, step.computed[chosen].long()[:, None] + new
