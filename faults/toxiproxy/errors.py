"""Errors of the proxy's API: a status code and the text that clients of toxiproxy know."""

from __future__ import annotations


class ApiError(Exception):
    """An answer other than success. ``str(error)`` is the ``error`` of the JSON body."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def bad_request(why: object) -> ApiError:
    return ApiError(400, f"bad request body: {why}")


def missing_field(what: str) -> ApiError:
    return ApiError(400, f"missing required field: {what}")


def invalid_stream() -> ApiError:
    return ApiError(400, "stream was invalid, can be either upstream or downstream")


def invalid_toxic_type() -> ApiError:
    return ApiError(400, "invalid toxic type")


def proxy_not_found() -> ApiError:
    return ApiError(404, "proxy not found")


def proxy_exists() -> ApiError:
    return ApiError(409, "proxy already exists")


def toxic_not_found() -> ApiError:
    return ApiError(404, "toxic not found")


def toxic_exists() -> ApiError:
    return ApiError(409, "toxic already exists")
