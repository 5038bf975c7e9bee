"""Who may call what: three roles, and one table of methods that denies by default."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Role(Enum):
    """What a certificate lets its holder do; each role has its own authority."""

    CLIENT = "client"
    NODE = "node"
    OPERATOR = "operator"


ANYONE = frozenset(Role)
NODES = frozenset({Role.NODE})
OPERATORS = frozenset({Role.OPERATOR})

ALLOWED_ROLES: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        "/rumormill.v1.Inference/Generate": ANYONE,
        "/rumormill.v1.Inference/Tokenize": ANYONE,
        "/rumormill.v1.Inference/ListModels": ANYONE,
        "/rumormill.v1.Overlay/Gossip": NODES,
        "/rumormill.v1.Overlay/Forward": NODES,
        "/rumormill.v1.Overlay/Describe": NODES,
        "/rumormill.v1.Admin/GetStatus": OPERATORS,
        "/rumormill.v1.Admin/ListPeers": OPERATORS,
        "/rumormill.v1.Admin/ExplainRoute": OPERATORS,
        "/rumormill.v1.Admin/WatchRoutes": OPERATORS,
        "/rumormill.v1.Admin/FlushCache": OPERATORS,
        "/rumormill.v1.Admin/CheckCache": OPERATORS,
        "/rumormill.v1.Admin/Drain": OPERATORS,
        "/grpc.health.v1.Health/Check": ANYONE,
        "/grpc.health.v1.Health/List": ANYONE,
        "/grpc.health.v1.Health/Watch": ANYONE,
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": ANYONE,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": ANYONE,
    }
)
"""Full method name -> roles that may call it. A method that isn't here is for nobody."""

ALLOWED_HTTP_ROLES: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        "/dashboard/session": ANYONE,
        "/dashboard/events": OPERATORS,
        "/dashboard/blocks": OPERATORS,
        "/metrics": OPERATORS,
    }
)
"""The same by path, for what the HTTP door shows of the mesh; a caller has the role of its API key there."""


def allowed_roles(method: str) -> frozenset[Role]:
    """The roles that may call a full gRPC method name, such as `/rumormill.v1.Overlay/Gossip`."""
    return ALLOWED_ROLES.get(method, frozenset())


def allowed_http_roles(path: str) -> frozenset[Role]:
    """The roles that may ask for a path of the HTTP door that shows the mesh."""
    return ALLOWED_HTTP_ROLES.get(path, frozenset())
