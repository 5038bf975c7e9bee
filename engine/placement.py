"""Which device, number type and backend the engine runs with, from the options and what there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.config import Device, EngineConfig
from engine.errors import EngineConfigError

_BFLOAT16_CAPABILITY = (8, 0)
"""Since NVIDIA's Ampere; older GPUs emulate bf16."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What PyTorch says of CUDA here: `lacking` tells why it can't be used, if so."""

    lacking: str = ""
    bfloat16: bool = True

    @classmethod
    def look(cls) -> Gpu:
        """The GPU of this machine, as this process sees it."""
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch lacks the annotation
            return cls("this PyTorch is built without CUDA; install a CUDA build of torch")
        if not torch.cuda.is_available():
            return cls("PyTorch finds no GPU; check nvidia-smi, the driver and CUDA_VISIBLE_DEVICES")
        return cls(bfloat16=torch.cuda.get_device_capability() >= _BFLOAT16_CAPABILITY)


def place(options: EngineConfig, gpu: Gpu | None = None) -> EngineConfig:
    """The options with a device and a precision that are not "auto".

    Raises EngineConfigError for options that don't go together here, with what to do.
    """
    gpu = gpu or Gpu.look()
    device = _device(options, gpu)
    if device == "cpu":
        _check_cpu(options)
    else:
        _check_gpu(options, gpu)
    precision = options.precision
    if precision == "auto":
        precision = "bf16" if device == "cuda" and gpu.bfloat16 else "fp16"
    return replace(options, device=device, precision=precision)


def _device(options: EngineConfig, gpu: Gpu) -> Device:
    if options.device != "auto":
        return options.device
    if options.backend == "triton" or options.precision == "bf16":
        return "cuda"
    only_cpu = options.backend in ("native", "torch") or options.precision == "stored"
    return "cpu" if only_cpu or gpu.lacking else "cuda"


def _check_cpu(options: EngineConfig) -> None:
    if options.backend == "triton":
        raise EngineConfigError("backend 'triton' runs on a GPU only; choose 'auto', 'native' or 'torch'")
    if options.precision == "bf16":
        raise EngineConfigError("precision 'bf16' runs on a GPU only; choose 'fp16' or 'fp32'")


def _check_gpu(options: EngineConfig, gpu: Gpu) -> None:
    if gpu.lacking and options.device == "cuda":
        raise EngineConfigError(f"device 'cuda' can't be used: {gpu.lacking}, or choose device 'cpu'")
    if gpu.lacking:
        wish = "precision 'bf16'" if options.precision == "bf16" else "backend 'triton'"
        raise EngineConfigError(f"{wish} needs a GPU: {gpu.lacking}, or choose 'auto'")
    if options.backend == "native":
        raise EngineConfigError("backend 'native' runs on the CPU only; choose 'auto' or device 'cpu'")
    if options.precision == "stored":
        raise EngineConfigError("precision 'stored' runs on the CPU only; choose 'bf16' or device 'cpu'")
    if options.precision == "bf16" and not gpu.bfloat16:
        raise EngineConfigError("this GPU has no bf16; choose precision 'fp16' or 'fp32'")
