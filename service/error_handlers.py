"""Errors that routes raise, as answers."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service.errors import FieldError, MethodNotAllowed, NotFound, ServiceError, Unprocessable
from service.problem import refusal


def add_error_handlers(app: FastAPI) -> None:
    """Let an app answer its own errors and the framework's in the service's form."""

    @app.exception_handler(ServiceError)
    async def refused(request: Request, error: ServiceError) -> Response:
        request.state.log["code"] = error.code
        return refusal(error, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = [
            FieldError("/" + "/".join(map(str, one["loc"][1:])), f"{one['msg']}, not {one['input']!r:.40}")
            for one in error.errors()
        ]
        detail = "; ".join(f"{field.pointer}: {field.message}" for field in fields)
        return await refused(request, Unprocessable(detail, *fields))

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        path, method = request.url.path[:200], request.method
        if error.status_code == 405:
            response = await refused(request, MethodNotAllowed(f"{path} has no method {method}"))
            response.headers.update(error.headers or {})
            return response
        return await refused(request, NotFound(f"there is no {path}"))
