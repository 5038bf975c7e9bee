"""The C structures of decoder.cpp, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from typing import ClassVar, Final

F32: Final = 0
F16: Final = 1
Q8: Final = 2
Q4: Final = 3

PANEL: Final = 16
BLOCK: Final = 32
BLOCK_BYTES: Final = {F32: 2048, F16: 1024, Q8: 544, Q4: 320}


class Matrix(ctypes.Structure):
    """A linear layer in panels."""

    _fields_: ClassVar = [
        ("format", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("panels", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    ]


class Layer(ctypes.Structure):
    """One decoder layer."""

    _fields_: ClassVar = [
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("window", c_int32),
        ("unused", c_int32),
    ]


class Model(ctypes.Structure):
    """The whole decoder."""

    _fields_: ClassVar = [
        ("layers", c_int32),
        ("hidden", c_int32),
        ("inner", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("threads", c_int32),
        ("epsilon", c_float),
        ("layer", POINTER(Layer)),
        ("final_norm", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("head", Matrix),
    ]


class Step(ctypes.Structure):
    """One step's work and the memory it uses."""

    _fields_: ClassVar = [
        ("rows", c_int32),
        ("pieces", c_int32),
        ("merges", c_int32),
        ("sampled", c_int32),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("tokens", c_void_p),
        ("tables", c_void_p),
        ("piece", c_void_p),
        ("merge_tokens", c_void_p),
        ("merge_begin", c_void_p),
        ("merge_partials", c_void_p),
        ("sampled_rows", c_void_p),
        ("x", c_void_p),
        ("normed", c_void_p),
        ("qkv", c_void_p),
        ("attended", c_void_p),
        ("gated", c_void_p),
        ("partials", c_void_p),
        ("logits", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("layer_stride", c_int64),
    ]
