"""Sends messages to their destinations: lanes, links, circuits and the meaning of send failures."""
