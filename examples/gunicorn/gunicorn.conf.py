"""Loads the application once, and makes a client in each worker."""

from typing import Any

wsgi_app = "service:application"
preload_app = True
workers = 2


def post_fork(server: Any, worker: Any) -> None:
    import service

    service.open_client()


def worker_exit(server: Any, worker: Any) -> None:
    import service

    service.close_client()
