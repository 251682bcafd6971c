"""Configures logging to standard error, as text or as one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

LEVELS = ("debug", "info", "warning", "error")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[LogFormat, typer.Option(help="Format of the log on standard error.")]


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logs(log_format: LogFormat, level: str) -> None:
    """Log twinbus at this level, and warnings of all other libraries, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    threshold = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))
    logging.getLogger("twinbus").setLevel(threshold)
    logging.captureWarnings(True)
