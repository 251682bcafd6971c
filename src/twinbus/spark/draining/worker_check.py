"""Check before a drain that Spark's workers have what its tasks import, and reach the same ledger."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from twinbus import __version__
from twinbus.ledger.store import open_store

from ..pipeline_errors import WorkersUnpreparedError
from ..session import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Other packages that tasks import: a worker that lacks one of them is named before any work.
MODULES = ("aiohttp", "azure.servicebus", "cryptography", "pyarrow")
#: The least number of tasks, and tasks for each core that Spark reports, so that every executor gets one.
TASKS, TASKS_PER_CORE = 8, 3


def check_workers(spark: SparkSession, ledger: str | None = None) -> None:
    """Raise WorkersUnpreparedError unless the workers have this twinbus, and reach the same ledger.

    Each task reads a file that the driver has written beside the ledger, and writes one that the driver looks for. So
    a path that is another folder on each machine is detected before a message is received.
    """
    tasks = max(TASKS, TASKS_PER_CORE * _cores(spark))
    nonce = uuid.uuid4().hex
    store = None if ledger is None else open_store(ledger)
    name = f"_check-{nonce}"
    names = [name, *(f"{name}-{number}" for number in range(tasks))]
    try:
        if store is not None:
            store.put("", name, nonce.encode())
        answers = _ask_workers(spark, ledger, nonce, tasks)
        _check_modules(answers)
        if store is not None and ledger is not None:
            written = set(store.files(""))
            for answer in answers:
                if answer["found"] != nonce or f"{name}-{answer['number']}" not in written:
                    raise WorkersUnpreparedError(
                        f"the ledger {store.place} is another place on worker {answer['host']}: give a folder or URL"
                        f" that driver and workers share{_error_of(answer)}"
                    )
    finally:
        if store is not None:
            for name in names:
                store.delete("", name)


def _cores(spark: SparkSession) -> int:
    """The cores of all executors; with Spark Connect, what the session assumes."""
    if "connect" in type(spark).__module__:
        return int(spark.conf.get("spark.sql.shuffle.partitions", "16") or 16)
    return int(spark.sparkContext.defaultParallelism)


def _error_of(answer: dict[str, Any]) -> str:
    return f" ({answer['error']})" if answer.get("error") else ""


def _check_modules(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        where = f"worker {answer['host']} ({answer['python']})"
        if answer["version"] != __version__:
            has = answer["version"] or "none"
            raise WorkersUnpreparedError(f"{where} needs twinbus {__version__}, it has {has} (docs/how-to/spark.md)")
        if answer["missing"]:
            raise WorkersUnpreparedError(f"{where} lacks {', '.join(answer['missing'])} (docs/how-to/spark.md)")


def _ask_workers(spark: SparkSession, ledger: str | None, nonce: str, tasks: int) -> list[dict[str, Any]]:
    from pyspark.sql.functions import col, udf

    modules = MODULES

    def look(
        number: int,
    ) -> str:  # an inner function is sent to workers by value: it runs there without twinbus
        import json
        import os
        import socket
        import sys
        from importlib import import_module

        answer: dict[str, object] = {"number": number, "host": socket.gethostname(), "found": None, "version": None}
        answer["python"] = f"Python {sys.version_info[0]}.{sys.version_info[1]}, process {os.getpid()}"
        missing = []
        for name in modules:
            try:
                import_module(name)
            except ImportError as error:
                missing.append(error.name or name)
        answer["missing"] = missing
        try:
            from twinbus import __version__ as version
        except ImportError:
            return json.dumps(answer)
        answer["version"] = version
        if ledger is not None and not missing:
            from twinbus.ledger.store import open_store

            try:
                store = open_store(ledger)
                store.put("", f"_check-{nonce}-{number}", b"here")
                with store.open("", f"_check-{nonce}") as file:
                    answer["found"] = file.read().decode()
            except Exception as error:
                answer["error"] = f"{type(error).__name__}: {error}"[:200]
        return json.dumps(answer)

    # Without Arrow, which workers without twinbus may lack, too.
    asked = spark.range(0, tasks, 1, tasks).select(udf(look, "string", useArrow=False)(col("id")))
    try:
        return [json.loads(row[0]) for row in asked.collect()]
    except Exception as error:  # PySpark's or Py4J's
        raise WorkersUnpreparedError(f"Spark's Python workers do not work: {reason_of(error)}") from error
