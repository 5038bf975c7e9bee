"""What can go wrong in a node, and the one place where each error gets its wire status.

NodeError
├── StartupError                  the node can't start; printed as one line, exit status 2
└── RequestError                  one request can't be served
    ├── InvalidRequestError       the request is wrong, and says how to mend it
    ├── UnauthenticatedError      the caller has not proved to be anybody who may call
    ├── ForbiddenError            the caller's role may not do this
    ├── UnknownModelError         no such model here
    ├── TooLargeError             the body is over a limit
    ├── TooManyCallsError         this caller makes more calls than one may
    ├── OverloadedError           every queue is full: try again after `retry_after_s`
    ├── DeadlineExceededError     the caller's time was up before there was an answer
    ├── DrainingError             this node takes no new work
    └── UnavailableError          the engine is gone and no peer could take over
"""

from __future__ import annotations

import grpc


class NodeError(Exception):
    """Root of this package's errors; its text names the cause and the remedy."""


class StartupError(NodeError):
    """The node can't start."""


class RequestError(NodeError):
    """One request can't be served."""

    grpc_status = grpc.StatusCode.INTERNAL
    http_status = 500
    http_type = "internal_error"


class InvalidRequestError(RequestError):
    """The request itself is wrong; `parameter` names the field, if one is to blame."""

    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    http_type = "invalid_request_error"

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class UnauthenticatedError(RequestError):
    """The caller has not proved to be anybody who may call."""

    grpc_status = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401
    http_type = "authentication_error"


class ForbiddenError(RequestError):
    """The caller's role may not do this."""

    grpc_status = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403
    http_type = "permission_error"


class UnknownModelError(RequestError):
    """This mesh node serves another model."""

    grpc_status = grpc.StatusCode.NOT_FOUND
    http_status = 404
    http_type = "not_found_error"

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(f"model {asked!r} is not served here; this node serves {served!r}")


class TooLargeError(RequestError):
    """A body past the limit."""

    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 413
    http_type = "invalid_request_error"


class TooManyCallsError(RequestError):
    """One caller makes more calls than one may, at once or per second."""

    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429
    http_type = "rate_limit_error"


class OverloadedError(RequestError):
    """No queue has room, here or at a peer."""

    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429
    http_type = "rate_limit_error"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"every node is full; retry after {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class DeadlineExceededError(RequestError):
    """The caller's time was up before there was an answer."""

    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504
    http_type = "timeout_error"

    def __init__(self) -> None:
        super().__init__("the time given was over before the first token; give more, or a higher priority")


class DrainingError(RequestError):
    """This node is about to stop."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    http_type = "service_unavailable"

    def __init__(self) -> None:
        super().__init__("this node is draining and takes no new work; send the request to another node")


class UnavailableError(RequestError):
    """Nothing could run the request."""

    grpc_status = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    http_type = "service_unavailable"
