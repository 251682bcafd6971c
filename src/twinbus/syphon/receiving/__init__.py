"""Receives messages from a backlog queue: credit, locks and the broker's clock."""
