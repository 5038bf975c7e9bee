"""Stop strings, found across token borders: text that may begin one is held back until it can't."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Scans streamed text for the first of several stop strings."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The part of the text so far that is certain to be shown; nothing after a stop string is."""
        if self.found:
            return ""
        if not self._stops:
            return text
        self._held += text
        cut = min((at for stop in self._stops if (at := self._held.find(stop)) >= 0), default=-1)
        if cut >= 0:
            self.found = True
            shown, self._held = self._held[:cut], ""
            return shown
        keep = self._possible_beginning()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        shown, self._held = self._held, ""
        return shown

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        for length in range(min(len(self._held), max(map(len, self._stops)) - 1), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
