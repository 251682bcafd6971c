"""Sends messages: link pools, and delivery to the primary or the backlog."""
