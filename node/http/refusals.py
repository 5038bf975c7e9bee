"""What a refused request is answered with, wherever it was refused."""

from __future__ import annotations

from starlette.responses import JSONResponse

from node.errors import OverloadedError, RequestError, TooManyCallsError, UnauthenticatedError
from node.http.openai import error_object


def error_response(error: RequestError) -> JSONResponse:
    """OpenAI's error object, with the error's own status and headers."""
    headers = {}
    if isinstance(error, OverloadedError):
        headers["retry-after"] = str(max(round(error.retry_after_s), 1))
    elif isinstance(error, TooManyCallsError):
        headers["retry-after"] = "1"
    elif isinstance(error, UnauthenticatedError):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_object(error), status_code=error.http_status, headers=headers)
