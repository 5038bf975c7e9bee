"""Where the parts of the core put what is to be done."""

from __future__ import annotations

from overlay.core.actions import Action, Close, Dial, Emit, Persist, Send, SetTimer
from overlay.core.events import LinkId
from overlay.core.messages import Bye, ByeReason, Message
from overlay.core.types import Address, NodeId
from overlay.core.views import Notification


class Outbox:
    """The actions of the event being handled, in order."""

    def __init__(self) -> None:
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        """Hands out what was gathered, and begins anew."""
        actions, self._actions = self._actions, []
        return actions

    def send(self, link: LinkId, message: Message) -> None:
        self._actions.append(Send(link, message))

    def close(self, link: LinkId, reason: ByeReason, detail: str = "") -> None:
        """Says Bye, then closes."""
        self._actions.append(Send(link, Bye(reason, detail)))
        self._actions.append(Close(link, reason))

    def hang_up(self, link: LinkId, reason: ByeReason) -> None:
        """Closes without a word: the peer has said Bye."""
        self._actions.append(Close(link, reason))

    def dial(self, address: Address, node_id: NodeId | None) -> None:
        self._actions.append(Dial(address, node_id))

    def emit(self, notification: Notification) -> None:
        self._actions.append(Emit(notification))

    def persist(self, key: str, value: bytes) -> None:
        self._actions.append(Persist(key, value))

    def set_timer(self, at: float) -> None:
        self._actions.append(SetTimer(at))
