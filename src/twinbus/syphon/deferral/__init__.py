"""Finds, fetches and settles messages deferred in a backlog queue."""
