"""Sending: the pool of links of each sender, and the way of a message to the primary or to the backlog."""
