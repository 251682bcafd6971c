"""Keeps the password of a proxy out of the SDK's logs.

When a proxy refuses a tunnel, the SDK's asynchronous client logs the representation of aiohttp's exception, which has
the headers of the request.
"""

from __future__ import annotations

import logging
import re

_LOGGERS = "azure.servicebus"
_LOGIN = re.compile(r"(Proxy-Authorization\W+Basic )[A-Za-z0-9+/=]+", re.IGNORECASE)


class _HideLogin(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _LOGIN.search(text):
            record.msg, record.args = _LOGIN.sub(r"\1***", text), ()
        return True


_HIDE_LOGIN = _HideLogin()


def hide_proxy_login() -> None:
    """Mask the login of a proxy in every record of the SDK's loggers; calling it again changes nothing."""
    # A filter holds for the very logger that a record is made with, and there is one for each module.
    for name in list(logging.Logger.manager.loggerDict):
        if name.startswith(_LOGGERS):
            logging.getLogger(name).addFilter(_HIDE_LOGIN)
