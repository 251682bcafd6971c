"""Queues, topics and subscriptions of a namespace: messages, locks, sessions, forwarding."""
