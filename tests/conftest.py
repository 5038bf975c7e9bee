"""What holds for all tests."""

from __future__ import annotations

import signal

# Started in the background, pytest ignores SIGINT, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
