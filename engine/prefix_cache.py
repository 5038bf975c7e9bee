"""The prefix cache: a radix tree over token blocks that owns the life of every cached KV block.

Who owns a block:

    BlockPool (free) --allocate()--> a sequence (private) --insert()--> a tree node (shared)
           ^                            | release_private()                 |
           +----------------------------+<------------- eviction -----------+

A sequence references all nodes on its path. Nodes nobody references stay cached until their block is
needed. They queue for eviction in the order in which they were released, the deepest of a path first, so
a node always stands behind its own children: the head of the queue is a leaf, and eviction is O(1).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from engine.block_hash import BlockHasher, Namespace
from engine.blocks import BlockPool
from engine.interface import BlockEvents
from engine.outline import CachedRun, outline

TOKEN_BYTES: Final = 4
MAX_SIBLINGS: Final = 64
"""Children of a node that are compared token by token."""


class Node:
    """One cached block: its place in the tree, its KV block, how many sequences use it and how many did."""

    __slots__ = ("block", "block_hash", "children", "hits", "key", "parent", "references")

    def __init__(self, parent: Node | None, key: bytes, block: int, block_hash: int) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.block_hash = block_hash
        self.children: dict[bytes, Node] = {}
        self.references = 0
        self.hits = 0


class Root(Node):
    """The head of one namespace's tree; it has no block."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace, block_hash: int) -> None:
        super().__init__(None, b"", -1, block_hash)
        self.namespace = namespace


class PrefixCache:
    """Radix trees, one per namespace, over blocks of token ids compared exactly."""

    def __init__(self, pool: BlockPool, hasher: BlockHasher) -> None:
        self._pool = pool
        self._hasher = hasher
        self._roots: dict[Namespace, Root] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self._nodes = 0
        self._private = 0
        self._stored: dict[int, None] = {}
        self._removed: dict[int, None] = {}

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._hasher.block_size

    @property
    def cached_blocks(self) -> int:
        """Blocks in the trees, in use or not."""
        return self._nodes

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold, private or shared."""
        return self._private + self._nodes - len(self._idle)

    @property
    def available_blocks(self) -> int:
        """Blocks that allocate() could hand out now, by eviction if need be."""
        return self._pool.free + len(self._idle)

    def block_key(self, token_ids: Sequence[int]) -> bytes:
        """The exact identity of one block of tokens under its parent."""
        return array("I", token_ids).tobytes()

    def peek(self, namespace: Namespace, token_ids: Sequence[int], limit: int) -> list[Node]:
        """The cached path of at most `limit` blocks, without taking references."""
        path: list[Node] = []
        node: Node | None = self._roots.get(namespace)
        size = self.block_size
        while node is not None and len(path) < limit:
            start = len(path) * size
            node = node.children.get(self.block_key(token_ids[start : start + size]))
            if node is not None:
                path.append(node)
        return path

    def closest(
        self, namespace: Namespace, parent: Node | None, token_ids: Sequence[int]
    ) -> tuple[Node, int] | None:
        """The cached block after `parent` that begins with most of `token_ids`, and how many those are."""
        above = parent or self._roots.get(namespace)
        if above is None:
            return None
        wanted = self.block_key(token_ids)
        best: tuple[Node, int] | None = None
        for node in islice(above.children.values(), MAX_SIBLINGS):
            common = _common_bytes(node.key, wanted) // TOKEN_BYTES
            if common > (best[1] if best else 0):
                best = node, common
        return best

    def acquire(self, path: Sequence[Node]) -> None:
        """References every node of a path, so that none can be evicted."""
        for node in path:
            if node.references == 0:
                del self._idle[node]
            node.references += 1
            node.hits += 1

    def release(self, path: Sequence[Node]) -> None:
        """Gives back the references of a path; its nodes stay cached until their blocks are needed."""
        for node in reversed(path):
            node.references -= 1
            if node.references == 0:
                self._idle[node] = None

    def allocate(self, count: int) -> list[int] | None:
        """`count` private blocks, the longest unused ones evicted if need be; None if too few."""
        if count > self.available_blocks:
            return None
        while self._pool.free < count:
            self._evict()
        self._private += count
        return [self._pool.take() for _ in range(count)]

    def release_private(self, blocks: Sequence[int]) -> None:
        """Frees private blocks that never became cached."""
        for block in reversed(blocks):
            self._pool.give(block)
        self._private -= len(blocks)

    def insert(self, namespace: Namespace, parent: Node | None, token_ids: Sequence[int], block: int) -> Node:
        """Caches a private block whose keys and values are computed, referenced once for the caller.

        When the same tokens are already cached under `parent`, that node is returned and `block` is freed.
        """
        if parent is None:
            parent = self._root(namespace)
        key = self.block_key(token_ids)
        self._private -= 1
        node = parent.children.get(key)
        if node is not None:
            self._pool.give(block)
            self.acquire((node,))
            return node
        node = Node(parent, key, block, self._hasher.child(parent.block_hash, token_ids))
        node.references = 1
        parent.children[key] = node
        self._nodes += 1
        self._record(node.block_hash, self._stored, self._removed)
        return node

    def flush(self) -> None:
        """Evicts everything that no sequence references."""
        while self._idle:
            self._evict()

    def outline(self, limit: int) -> tuple[CachedRun, ...]:
        """The most used runs of blocks, each after its parent."""
        return outline(self._roots.values(), limit)

    def take_events(self) -> BlockEvents:
        """The net changes since the last call."""
        events = BlockEvents(stored=tuple(self._stored), removed=tuple(self._removed))
        self._stored.clear()
        self._removed.clear()
        return events

    def check(self) -> None:
        """Raises AssertionError unless each block is free, private or in one node, and all counts agree."""
        nodes = list(self._walk())
        blocks = [node.block for node in nodes]
        free = self._pool.free_blocks()
        problems = {
            "a block is in two nodes": len(set(blocks)) != len(blocks),
            "a cached block is also free": bool(free.intersection(blocks)),
            "a free block is listed twice": len(free) != self._pool.free,
            "the node count is wrong": len(nodes) != self._nodes,
            "a block is lost": self._pool.free + self._private + self._nodes != self._pool.total,
            "the eviction queue disagrees with the reference counts": (
                {node for node in nodes if node.references == 0} != set(self._idle)
            ),
            "a node has fewer references than a child": any(
                child.references > node.references for node in nodes for child in node.children.values()
            ),
            "a child stands behind its parent in the eviction queue": self._queue_disordered(),
        }
        found = [problem for problem, present in problems.items() if present]
        if found:
            raise AssertionError("prefix cache: " + "; ".join(found))

    def _root(self, namespace: Namespace) -> Root:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Root(namespace, self._hasher.root(namespace))
        return root

    def _evict(self) -> None:
        node, _ = self._idle.popitem(last=False)
        parent = node.parent
        if parent is None or node.children:
            raise AssertionError("prefix cache: the head of the eviction queue is not a leaf")
        del parent.children[node.key]
        self._pool.give(node.block)
        self._nodes -= 1
        self._record(node.block_hash, self._removed, self._stored)
        if isinstance(parent, Root) and not parent.children:
            del self._roots[parent.namespace]

    def _record(self, block_hash: int, into: dict[int, None], other: dict[int, None]) -> None:
        if block_hash in other:
            del other[block_hash]
        else:
            into[block_hash] = None

    def _walk(self) -> Iterator[Node]:
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _queue_disordered(self) -> bool:
        seen: set[Node] = set()
        for node in self._idle:
            if any(child not in seen for child in node.children.values()):
                return True
            seen.add(node)
        return False


def _common_bytes(first: bytes, second: bytes) -> int:
    """How many bytes both begin with."""
    shorter = min(len(first), len(second))
    difference = int.from_bytes(first[:shorter], "big") ^ int.from_bytes(second[:shorter], "big")
    return shorter - (difference.bit_length() + 7) // 8
