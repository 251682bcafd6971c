"""Operator tools: inspect the backlog, replay its dead letters, read entity states from a ledger."""
