"""Who calls the HTTP door: the holder of an API key or, at a door without keys, whoever reaches it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from fastapi import Request as HttpRequest

from certs.roles import Role
from node.errors import ForbiddenError
from node.http.api_keys import ApiKeys


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """`name` is whom a tenant's salt is derived from."""

    name: str
    role: Role


class Callers:
    """Identifies callers by their API keys; without keys the door is on loopback and all is theirs to see."""

    def __init__(self, api_keys: ApiKeys | None) -> None:
        self._api_keys = api_keys

    def identify(self, http: HttpRequest) -> HttpCaller:
        """Raises UnauthenticatedError, and ForbiddenError for a page that only pretends to be local."""
        if self._api_keys is None:
            _check_host(http.url.hostname or "")
            return HttpCaller("http", Role.OPERATOR)
        key = self._api_keys.identify(http.headers.get("authorization", ""))
        return HttpCaller(f"http/{key.name}", key.role)


def _check_host(host: str) -> None:
    """A web page can make its own name mean 127.0.0.1 (DNS rebinding) and then read what is here."""
    if host == "localhost" or host.endswith(".localhost"):
        return
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ForbiddenError(f"this page is for this machine: open it as http://127.0.0.1, not {host}")
