"""Loads a model into the decoder that suits this machine."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.model import TorchDecoder
from engine.model_files import ModelFiles
from engine.native.decoder import NativeDecoder
from engine.native.library import NativeUnavailable
from engine.placement import place
from engine.progress import begin
from engine.runner import Decoder
from engine.weights import open_weights


def load_decoder(files: ModelFiles, options: EngineConfig, blocks: int) -> Decoder:
    """Reads the tensors. Raises a ModelError, or EngineConfigError for a backend that can't run here."""
    options = place(options)
    begin("reading the weights")
    with open_weights(files) as weights:
        if options.device == "cuda":
            from engine.cuda.decoder import CudaDecoder

            return CudaDecoder(files.config, weights, options, blocks, torch.device("cuda"))
        if options.backend != "torch":
            try:
                return NativeDecoder(files.config, weights, options, blocks)
            except NativeUnavailable as error:
                if options.backend == "native":
                    raise EngineConfigError(
                        f"backend 'native' can't run: {error}; choose backend 'torch'"
                    ) from error
        return TorchDecoder(files.config, weights, options, blocks)
