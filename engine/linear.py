"""Linear layers on CPU, with weights packed once for the kernels that run them.

fp32: oneDNN's blocked layout. fp16: FBGEMM's, weights rounded to 16 bits, activations and sums fp32; each row
of its result is the same whatever other rows are in the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from engine.config import Precision

Linear = Callable[[Tensor], Tensor]
"""x [tokens, inputs] -> [tokens, outputs], both fp32."""


def pack_linear(weight: Tensor, bias: Tensor | None, precision: Precision) -> Linear:
    """A linear layer from its fp32 weight [outputs, inputs] and bias [outputs]; "stored" runs as fp32."""
    if precision == "fp16" and _has_fp16_kernel():
        return _pack_fp16(weight, bias)
    if precision == "fp16":
        weight = weight.half().float()
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch lacks the annotation
        return _pack_onednn(weight, bias)
    return lambda x: functional.linear(x, weight, bias)


def _has_fp16_kernel() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def _pack_fp16(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    run = torch.ops.quantized.linear_dynamic_fp16
    return lambda x: run(x, packed)


def _pack_onednn(weight: Tensor, bias: Tensor | None) -> Linear:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)  # noqa: SLF001 - what torch.compile's CPU path calls
    run = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - likewise
    return lambda x: run(x, packed, bias, "none", [], "")
