"""The envelope of a diverted message: wraps it for a backlog queue and restores it."""
