"""Test helper: a port for a server that has to be told which one to listen on."""

from __future__ import annotations

import random
import socket

#: Below the ports that systems give to connections, so that no connection takes it before the server does.
PORTS = range(20_000, 32_768)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
