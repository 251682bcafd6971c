# Generated from pairing/sending/_async/__init__.py by `make generate`: change it there.
"""Written once, for asyncio. `make generate` makes the synchronous twin in `_sync`."""
