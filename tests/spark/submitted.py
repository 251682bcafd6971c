"""A job for spark-submit that prints which Spark it got, as JSON."""

from __future__ import annotations

import json

from twinbus.spark.session import running_spark

with running_spark(slots=7, config={"spark.sql.shuffle.partitions": "3"}) as spark:
    context = spark.sparkContext
    seen = {
        "master": context.master,
        "time_zone": spark.conf.get("spark.sql.session.timeZone"),
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "sum": spark.range(10).selectExpr("sum(id)").collect()[0][0],
    }
# The job's owner stops it, not we.
seen["runs_on"] = context._jsc is not None
print(json.dumps(seen))
