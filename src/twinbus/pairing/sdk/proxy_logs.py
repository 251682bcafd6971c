"""Keeps proxy passwords and tracebacks of proxy refusals out of the SDK's logs.

When a proxy refuses a tunnel, as it does while the namespace is down, the SDK logs an error with a traceback at every
attempt and ping. That becomes one INFO line, as for other lost connections: the caller gets the error. The asynchronous
client also logs the request's headers with the login.
"""

from __future__ import annotations

import logging
import re

_LOGGERS = "azure.servicebus"
_LOGIN = re.compile(r"(Proxy-Authorization\W+Basic )[A-Za-z0-9+/=]+", re.IGNORECASE)
#: The exceptions of aiohttp and websocket-client for a refusal by a proxy.
_REFUSALS = frozenset({"ClientHttpProxyError", "WebSocketProxyException"})


class _TidyRecords(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__name__ in _REFUSALS:
            record.msg, record.args, record.exc_info = "The proxy refused the tunnel: %s", (error,), None
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        text = record.getMessage()
        if _LOGIN.search(text):
            record.msg, record.args = _LOGIN.sub(r"\1***", text), ()
        return logging.getLogger(record.name).isEnabledFor(record.levelno)


_TIDY_RECORDS = _TidyRecords()


def tidy_proxy_logs() -> None:
    """Filter the records of all SDK loggers; calling it again changes nothing."""
    # A filter applies only to its own logger, and the SDK has one per module.
    for name in list(logging.Logger.manager.loggerDict):
        if name.startswith(_LOGGERS):
            logging.getLogger(name).addFilter(_TIDY_RECORDS)
