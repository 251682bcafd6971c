"""Faults for tests: what they do to connections, links and operations."""
