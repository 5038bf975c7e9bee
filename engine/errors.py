"""Everything the engine can refuse or fail at.

EngineError
├── EngineConfigError         an option of the engine that can't work
├── ModelError                the model can't be used
│   ├── ModelNotFoundError    nothing at that reference
│   ├── ModelDamagedError     files that are truncated, inconsistent or not what they claim
│   └── ModelUnsupportedError an architecture, tensor type or feature the engine doesn't run
├── RequestError              one request that can't be run; the engine goes on
│   ├── EmptyPromptError
│   ├── PromptTooLongError
│   ├── InvalidTokenIdsError
│   ├── InvalidSamplingError
│   ├── InvalidSchedulingError
│   ├── DuplicateRequestError
│   └── QueueFullError        too many live requests; later it may work
└── EngineDiedError          the engine's process is gone; it restarts by itself
"""

from __future__ import annotations


class EngineError(Exception):
    """The root; its text is one line that names the cause and the remedy."""


class EngineConfigError(EngineError):
    """An option of the engine that can't work."""


class ModelError(EngineError):
    """The model can't be used."""


class ModelNotFoundError(ModelError):
    """Nothing at that reference."""


class ModelDamagedError(ModelError):
    """Files that are truncated, inconsistent or not what they claim to be."""


class ModelUnsupportedError(ModelError):
    """An architecture, tensor type or feature this engine doesn't run."""


class RequestError(EngineError):
    """One request that can't be run; the engine goes on."""


class EmptyPromptError(RequestError):
    """A prompt without tokens."""


class PromptTooLongError(RequestError):
    """A prompt that leaves no room for one more token."""


class InvalidTokenIdsError(RequestError):
    """Token ids outside the vocabulary."""


class InvalidSamplingError(RequestError):
    """Sampling parameters without a meaning."""


class InvalidSchedulingError(RequestError):
    """A client, priority or deadline without a meaning."""


class DuplicateRequestError(RequestError):
    """A request id that a live request already has."""


class QueueFullError(RequestError):
    """More live requests than the engine holds; later it may work."""


class EngineDiedError(EngineError):
    """The engine's process is gone; it restarts by itself."""
