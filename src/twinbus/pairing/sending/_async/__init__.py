"""Written once, for asyncio. `make generate` makes the synchronous twin in `_sync`."""
