"""Lists sessions as the SDK does, with errors that name the entity."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

from azure.core.async_paging import AsyncItemPaged
from azure.servicebus.exceptions import ServiceBusError

from twinbus.pairing.failover.error_classification import explained


def explained_sessions(sessions: AsyncItemPaged[str], entity: str, namespace: str) -> AsyncItemPaged[str]:
    """Return the same sessions; the first page raises `EntityNotFoundError` if the entity does not exist."""

    def pages(continuation_token: str | None = None) -> _Pages:
        return _Pages(sessions.by_page(continuation_token), entity, namespace)

    return AsyncItemPaged(page_iterator_class=pages)


class _Pages:
    """The SDK's iterator of pages, with errors that name entity and namespace."""

    def __init__(self, pages: Any, entity: str, namespace: str) -> None:
        self._pages = pages
        self._entity = entity
        self._namespace = namespace

    @property
    def continuation_token(self) -> str | None:
        """Where the next page begins."""
        token: str | None = self._pages.continuation_token
        return token

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncIterator[str]:
        try:
            page: AsyncIterator[str] = await self._pages.__anext__()
        except ServiceBusError as error:
            clear = explained(error, self._entity, self._namespace)
            if clear is error:
                raise
            raise clear from error
        return page
