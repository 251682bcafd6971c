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
from .verdicts import evidence, with_spelling


def with_late_arrivals(counts: DataFrame, message_days: DataFrame) -> DataFrame:
    """`verdict_counts`, where an unexpected arrival of a message that is known from earlier days is late.

    Args:
        message_days: Of all days.
    """
    key = [*MESSAGE, "day"]
    earlier = message_days.select(*MESSAGE, F.col("day").alias("earlier"))
    candidates = counts.where("unexpected and not is_late").select(*key)
    known = earlier.join(candidates, list(MESSAGE)).where("earlier < day").select(*key).distinct()
    marked = counts.join(known.withColumn("is_known", F.lit(True)), key, "left")
    return marked.withColumn("is_late", F.expr("is_late or is_known is not null")).select(*counts.columns)


def anomalies(counts: DataFrame, spellings: DataFrame) -> DataFrame:
    """The table, from `verdict_counts`."""
    words = F.array_compact(F.array(*(F.when(F.col(word), word) for word in ANOMALIES)))
    word = F.explode(F.when(F.col("is_late"), F.array(F.lit("late"))).otherwise(words))
    listed = counts.where("message_id is not null").withColumns(
        {"word": word, "evidence": evidence(F.col("by_receivers"))}
    )
    return as_table(with_spelling(listed, spellings, "destination"), TABLE)
