"""Requests and frames that no honest program would send, from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

_INTEGERS = (0, 1, 2, 3, 7, 15, 16, 17, 127, 128, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_WIDE = (*_INTEGERS, 1 << 32, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, 2.0, float("nan"), float("inf"), float("-inf"))
_SIGNED = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


def mutated(rng: random.Random, specimen: bytes) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    data = bytearray(specimen)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0 and place < len(data):
            data[place] = rng.randrange(256)
        elif kind == 1:
            del data[place : place + rng.randint(1, 8)]
        elif kind == 2:
            data[place:place] = rng.randbytes(rng.randint(1, 8))
        else:
            data += data[: rng.randint(0, 64)]
    return bytes(data)


def random_message(rng: random.Random, kind: type[M], depth: int = 0) -> M:
    """A message whose shape is right and whose values are anything."""
    message = kind()
    oneofs: list[Any] = list(message.DESCRIPTOR.oneofs)
    chosen = {oneof.name: rng.choice(oneof.fields).name for oneof in oneofs}
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        wanted = chosen[oneof.name] == field.name if oneof is not None else rng.random() < 0.5
        if wanted:
            _fill(rng, message, field, depth)
    return message


def tweaked(rng: random.Random, specimen: M) -> M:
    """A message with one value changed, however deep inside."""
    message = type(specimen)()
    message.CopyFrom(specimen)
    inner: Message = message
    depth = 0
    while True:
        present: list[Any] = [field for field, _ in inner.ListFields()]
        field = rng.choice(present or list(inner.DESCRIPTOR.fields))
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and inner.ListFields() and not is_map:
            value = getattr(inner, field.name)
            inner, depth = (value[rng.randrange(len(value))] if field.is_repeated else value), depth + 1
            if inner.DESCRIPTOR.fields:
                continue
        if rng.random() < 0.5:
            field = rng.choice(inner.DESCRIPTOR.fields)
        inner.ClearField(field.name)
        _fill(rng, inner, field, depth)
        return message


def _fill(rng: random.Random, message: Message, field: Any, depth: int) -> None:
    count = rng.choice((0, 1, 2, 3, 40)) if field.is_repeated else 1
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        for _ in range(count):
            getattr(message, field.name)[_value(rng, key)] = _value(rng, value)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        for _ in range(count if depth < 3 else 0):
            inner = getattr(message, field.name)
            target = inner.add() if field.is_repeated else inner
            target.CopyFrom(random_message(rng, type(target), depth + 1))
    elif field.is_repeated:
        getattr(message, field.name).extend(_value(rng, field) for _ in range(count))
    else:
        setattr(message, field.name, _value(rng, field))


def _value(rng: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind in _SIGNED:
        limit = 1 << _SIGNED[kind]
        return max(-limit, min(rng.choice(_WIDE) * rng.choice((1, -1)), limit - 1))
    if kind in _UNSIGNED:
        return min(rng.choice(_WIDE), (1 << _UNSIGNED[kind]) - 1)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(_FLOATS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice((0, 1, 2, 3, 4, 99))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 8, 16, 31, 32, 33, 64, 256, 2048)))
    return rng.choice(("", "a", "127.0.0.1", "::1", "fe80::1%eth0", "\0", "ü" * 40, "x" * 300, "y" * 5000))


JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 63, 1 << 64, 10**30, 0.5, -0.5, 1e308, float("nan"),
    float("inf"), "", "a", "0", "\0", "\ud800", "é😀" * 20, "x" * 5000, [], {}, [[]], [None], ["a"], [1],
    [-1], [1 << 40], [{}], {"a": 1}, {"role": "user"}, [{"role": "user", "content": None}],
    [{"type": "text", "text": "x"}], [{"type": "image_url"}],
)  # fmt: skip


def mutated_body(rng: random.Random, specimen: dict[str, Any], fields: tuple[str, ...]) -> bytes:
    """A JSON body with other values, fields left out or put in, or one that is no JSON any more."""
    body = copy.deepcopy(specimen)
    for _ in range(rng.randint(1, 3)):
        rng.choice((_replace, _drop, _put, _dig))(rng, body, fields)
    text = json.dumps(body, ensure_ascii=rng.random() < 0.8).encode("utf-8", "surrogatepass")
    return rng.choice((_whole, _whole, _whole, mutated, _cut, _nested, _doubled))(rng, text)


def _replace(rng: random.Random, body: dict[str, Any], fields: tuple[str, ...]) -> None:
    if body:
        body[rng.choice(tuple(body))] = rng.choice(JSON_VALUES)


def _drop(rng: random.Random, body: dict[str, Any], fields: tuple[str, ...]) -> None:
    if body:
        del body[rng.choice(tuple(body))]


def _put(rng: random.Random, body: dict[str, Any], fields: tuple[str, ...]) -> None:
    body[rng.choice((*fields, "nonsense", ""))] = rng.choice(JSON_VALUES)


def _dig(rng: random.Random, body: dict[str, Any], fields: tuple[str, ...]) -> None:
    """Changes something inside, where there is an inside."""
    inner: Any = body
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(inner[key], (dict, list)) or rng.random() < 0.3:
            inner[key] = rng.choice(JSON_VALUES)
            return
        inner = inner[key]


Rewriting = Callable[[random.Random, bytes], bytes]


def _whole(rng: random.Random, text: bytes) -> bytes:
    return text


def _cut(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randrange(len(text) + 1)]


def _nested(rng: random.Random, text: bytes) -> bytes:
    depth = rng.choice((1, 30, 70, 2000))
    return b"[" * depth + text + b"]" * depth


def _doubled(rng: random.Random, text: bytes) -> bytes:
    """Every key twice: the second value counts, or an error does."""
    return text[:-1] + b"," + text[1:] if len(text) > 2 else text
