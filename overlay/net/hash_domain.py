"""Which hash key a node's block hashes are made with: others' mean nothing here.

While a mesh changes its token, nodes of both keys live in it. A Hello's model therefore ends in the
key's name on the wire, so that sets made with another key count as another model's.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from overlay.core.messages import Hello, Message

NAME_BYTES = 8


class HashDomain:
    """Names the key on outgoing Hellos, and takes the name off those that carry the same one."""

    def __init__(self, key: bytes) -> None:
        self.digest_key = blake2b(key, digest_size=32, person=b"rumormill-digest").digest()
        self._name = blake2b(key, digest_size=NAME_BYTES, person=b"rumormill-domain").digest()

    def outgoing(self, message: Message) -> Message:
        if isinstance(message, Hello):
            return replace(message, model=message.model + self._name)
        return message

    def incoming(self, message: Message) -> Message:
        if isinstance(message, Hello) and message.model.endswith(self._name):
            return replace(message, model=message.model[:-NAME_BYTES])
        return message
