"""One node's dashboard: what its pages ask for, put together from the node's parts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from certs.roles import Role
from certs.token import MeshToken
from engine.block_hash import BlockHasher
from engine.process import EngineProcess
from engine.tokenizer import Tokenizer
from node.admission import Admission
from node.dashboard.feed import Feed, Pictures
from node.dashboard.peer_portraits import PeerPortraits
from node.dashboard.pictures import Self, cache_picture, decision_picture, mesh_picture
from node.dashboard.prompt_blocks import PromptBlocks
from node.dashboard.state_times import StateTimes
from node.decisions import DecisionFeed
from node.portrait import SelfPortrait
from node.request_builder import RequestBuilder
from node.served import Served
from node.state import StateDir
from node.tenants import Tenants
from node.version import VERSION
from overlay.core.router import Router
from overlay.core.types import NodeId
from overlay.net.mesh import Mesh


class Shown(Protocol):
    """What a dashboard shows: a node, once it has started."""

    admission: Admission
    builder: RequestBuilder
    decisions: DecisionFeed
    engine: EngineProcess
    mesh: Mesh
    portrait: SelfPortrait
    router: Router
    state: StateDir
    state_times: StateTimes
    tenants: Tenants
    token: MeshToken | None

    @property
    def served(self) -> Served: ...

    @property
    def http_url(self) -> str: ...

    @property
    def is_loopback(self) -> bool: ...


class Dashboard:
    """Answers the page's questions; its `feed` works only while somebody watches."""

    def __init__(self, node: Shown, tokenizer: Tokenizer, hasher: BlockHasher) -> None:
        self._node = node
        self._peers = PeerPortraits(node.mesh)
        self._blocks = PromptBlocks(node.builder, tokenizer, hasher, node.engine.info.namespace.model)
        self.feed = Feed(self._take_pictures, node.decisions, decision_picture, self._peers.keep)

    def session(self, role: Role) -> dict[str, Any]:
        """What a page shows before anything happens, as far as a role may see it."""
        node, info = self._node, self._node.engine.info
        session = {
            "role": role.value,
            "version": VERSION,
            "node": node.mesh.node_id,
            "model": {
                "name": info.model_name,
                "context_tokens": info.context_tokens,
                "block_size": info.block_size,
            },
        }
        if role is not Role.OPERATOR:
            return session
        return session | {
            "mesh": node.mesh.mesh_id,
            "policy": node.router.policy,
            "loopback": node.is_loopback,
            "token_file": str(node.state.path / "token") if node.token else None,
            "addresses": [str(address) for address in node.mesh.addresses],
        }

    def prompt_blocks(self, messages: list[dict[str, str]], caller: str) -> dict[str, Any]:
        """A caller's own prompt as blocks; raises InvalidRequestError."""
        return self._blocks.of(messages, self._node.tenants.caller(caller).salt)

    async def close(self) -> None:
        """Ends every page's stream."""
        await self.feed.close()

    async def _take_pictures(self) -> Pictures:
        node, mesh = self._node, self._node.mesh
        own = Self(
            http_url=node.http_url,
            model_name=node.engine.info.model_name,
            draining=node.admission.draining,
            served=node.served,
            portrait=await node.portrait.now(),
        )
        portraits = self._peers.latest
        pictures: dict[str, tuple[str, dict[str, Any]]] = {
            "mesh": ("mesh", mesh_picture(mesh, own, portraits, node.state_times, self._quarantined()))
        }
        for node_id, portrait in {mesh.node_id: own.portrait, **portraits}.items():
            pictures[f"cache {node_id}"] = ("cache", cache_picture(mesh, node_id, portrait))
        return pictures

    def _quarantined(self) -> Mapping[NodeId, float]:
        now, quarantine = time.monotonic(), self._node.router.quarantine
        return {peer.node_id: quarantine.remaining(peer.node_id, now) for peer in self._node.mesh.peers()}
