# Generated from pairing/sending/_async/__init__.py by `make generate`: change it there.
"""Asynchronous source of the sender; `make generate` writes its synchronous twin in `_sync`."""
