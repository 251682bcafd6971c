"""Reads administration requests: path, address, version condition, paging and body. Raises `RequestError`."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import unquote

from aiohttp import web

from twinbus.emulator.admin.address import Address
from twinbus.emulator.admin.errors import RequestError
from twinbus.servicebus.durations import TICKS_PER_SECOND as _TICKS_PER_SECOND

MAX_BODY_BYTES = 1024 * 1024
MAX_PAGE = 100
OLDEST_VERSION, NEWEST_VERSION = "2017-04", "2024-05"
_EPOCH_TICKS = 621_355_968_000_000_000  # .NET counts from the year 1
_BODY_SECONDS = 30
_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}")
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")
_NUMBER = re.compile(r"[0-9]{1,9}")


def path_of(request: web.BaseRequest) -> str:
    """The decoded path, without its first slash. Slashes within a name may be encoded or not."""
    try:
        return unquote(request.rel_url.raw_path, errors="strict").removeprefix("/")
    except UnicodeDecodeError as error:
        raise RequestError(400, "SubCode=40000. The path must be UTF-8.") from error


def address_of(request: web.BaseRequest) -> Address:
    """The address that the client used, and the API version of the request."""
    if not _HOST.fullmatch(request.host):
        raise RequestError(400, "SubCode=40000. The header Host must be a host name or address and a port.")
    version = request.query.get("api-version", NEWEST_VERSION)
    if not _VERSION.fullmatch(version) or not OLDEST_VERSION <= version <= NEWEST_VERSION:
        bounds = f"{OLDEST_VERSION} to {NEWEST_VERSION}"
        raise RequestError(400, f"SubCode=40000. The query option api-version must be one of {bounds}.")
    return Address(request.scheme, request.host, version)


def is_update(request: web.BaseRequest) -> bool:
    """Whether a PUT updates an existing entity; without `If-Match` it creates a new one."""
    return "If-Match" in request.headers


def etag_of(updated_at: float) -> str:
    """The ETag of an entity that was last updated at this time: .NET ticks, as on the service."""
    return str(_EPOCH_TICKS + round(updated_at * _TICKS_PER_SECOND))


def check_version(request: web.BaseRequest, updated_at: float) -> None:
    """Raise `RequestError` if `If-Match` names another version than the entity's."""
    condition = request.headers.get("If-Match", "*").strip().removeprefix("W/").strip('"')
    if condition not in ("*", etag_of(updated_at)):
        detail = "SubCode=41200. The entity has changed: its ETag is not the one in the header If-Match."
        raise RequestError(412, detail)


async def body_of(request: web.BaseRequest) -> bytes:
    """Read the whole body, within limits of size and time."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise RequestError(413, f"The request body must have at most {MAX_BODY_BYTES} bytes.")
    except web.RequestPayloadError as error:
        # The content encoding or the chunks are broken; the library's text does not help the client.
        raise RequestError(
            400, "SubCode=40000. The request body does not match its Content-Encoding or Transfer-Encoding."
        ) from error
    except TimeoutError as error:
        raise RequestError(408, f"The request body did not arrive within {_BODY_SECONDS} seconds.") from error
    return bytes(body)


def page_of(request: web.BaseRequest) -> tuple[int, int]:
    """The `$skip` and `$top` of a list request."""
    return _option(request, "$skip", 0), min(_option(request, "$top", MAX_PAGE), MAX_PAGE)


def _option(request: web.BaseRequest, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text):
        raise RequestError(400, f"SubCode=40000. The query option {name} must be a whole number below 1000000000.")
    return int(text)
