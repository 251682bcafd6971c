"""Settles moved messages, and records them in the ledger first."""
