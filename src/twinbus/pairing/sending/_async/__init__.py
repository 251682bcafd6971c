"""Asynchronous source of the sender; `make generate` writes its synchronous twin in `_sync`."""
