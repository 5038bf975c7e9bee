"""A look at the node that runs here, for those who may look."""

from __future__ import annotations

import grpc

from node.client import Client, ClientError
from node.doctor.check import Check, ok, problem

NODE_SECONDS = 2.0
"""How long a node of this machine may take to answer; one that isn't there is no problem."""


def check_node(client: Client) -> Check:
    """The running node, if there is one: what its engine computes with, and whether its cache is in order."""
    try:
        client.wait_ready(NODE_SECONDS)
    except ClientError:
        return ok("node", f"none of this mesh runs at {client.address}")
    try:
        status, fault = client.status(), client.check_cache()
    except ClientError as error:
        if error.code is grpc.StatusCode.PERMISSION_DENIED:
            return ok("node", f"one answers at {client.address}; an operator could see its engine")
        return problem("node", str(error), "see the node's log")
    if fault:
        return problem("node", fault, "restart it, and report this as a bug")
    what = f"{status.model.name} on the {status.model.backend} backend"
    return ok("node", f"{what}; {status.cached_blocks} cached blocks in order")
