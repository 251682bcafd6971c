"""`anomalies`: the messages that someone should look at, one row per message and word.

Besides the words of `verdicts` there is `late`: operations on a message after it had left the horizon. They change no
verdict.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from twinbus.tables.table_schemas import ANOMALIES as TABLE
from twinbus.tables.verdict import ANOMALIES

from .expressions import as_table
from .message_days import MESSAGE
from .verdicts import evidence, spelt

LATE = "late"


def without_late_arrivals(counted: DataFrame, older: DataFrame) -> DataFrame:
    """Mark as late what arrived unexpectedly, but is known from days before its first one.

    Args:
        older: `message_days` of all days.
    """
    candidates = counted.where(F.col("unexpected") & ~F.col("is_late")).select(*MESSAGE, "first_day")
    known = (
        older.select(*MESSAGE, "day")
        .join(candidates, list(MESSAGE))
        .where(F.col("day") < F.col("first_day"))
        .select(*MESSAGE, "first_day")
        .distinct()
        .withColumn("was_known", F.lit(True))
    )
    found = counted.join(known, [*MESSAGE, "first_day"], "left")
    is_late = F.col("is_late") | F.coalesce("was_known", F.lit(False))
    return found.withColumn("is_late", is_late).drop("was_known").select(*counted.columns)


def anomalies(counted: DataFrame, spelling: DataFrame) -> DataFrame:
    """The table, from `counted` (`verdicts.counted`)."""
    words = F.array(*(F.when(F.col(word), F.lit(word)) for word in ANOMALIES))
    listed = F.when(F.col("is_late"), F.array(F.lit(LATE))).otherwise(F.array_compact(words))
    found = counted.where(F.col("message_id").isNotNull()).withColumns(
        {"day": F.col("seen_day"), "word": F.explode(listed), "evidence": evidence(F.col("by_receivers"))}
    )
    return as_table(spelt(found, spelling, "destination"), TABLE)
