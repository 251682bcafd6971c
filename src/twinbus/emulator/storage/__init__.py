"""Durable storage of a namespace: the SQLite store, its schema and its files."""
