"""A program that starts Spark, uses it, and prints what it saw as JSON. Arguments: a folder for event logs."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession

from twinbus.spark.draining.worker_check import check_workers
from twinbus.spark.session import running_spark

#: Secrets in settings of Spark: for a store, or by mistake.
SETTINGS = {
    "spark.hadoop.fs.azure.account.key.contoso": "SECRET-1",
    "spark.contoso.primary": "Endpoint=sb://contoso;SharedAccessKeyName=all;SharedAccessKey=SECRET-2",
    "spark.contoso.connection_string": "SECRET-3",
}
#: And as data that is handed to tasks.
ROW = "SharedAccessSignature sr=contoso&sig=SECRET-4"
PLAN = "SharedAccessSignature sr=contoso&sig=SECRET-5&se=1"


def main(event_logs: str) -> None:
    config = {
        **SETTINGS,
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": Path(event_logs).as_uri(),
    }
    with running_spark(slots=2, memory="1g", config=config) as spark:
        seen = look_at(spark)
    print(json.dumps(seen))


def look_at(spark: SparkSession) -> dict[str, object]:
    assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45
    tokens = spark.createDataFrame([(ROW,)], "token string")
    assert tokens.filter("token != ''").count() == 1
    check_workers(spark)
    explained = tokens.filter(f"token != '{PLAN}'")._jdf.queryExecution().toString()
    jvm = spark.sparkContext._jvm.java.lang
    process = jvm.ProcessHandle.current().pid()
    command = Path(f"/proc/{process}/cmdline")
    return {
        "java": jvm.System.getProperty("java.home"),
        "master": spark.sparkContext.master,
        "time_zone": spark.conf.get("spark.sql.session.timeZone"),
        "arrow": spark.conf.get("spark.sql.execution.arrow.pyspark.enabled"),
        "address": spark.sparkContext.getConf().get("spark.driver.host"),
        "settings": page(spark, f"/api/v1/applications/{spark.sparkContext.applicationId}/environment"),
        "pages": {path: page(spark, path) for path in ("/environment/", "/jobs/", "/SQL/", "/SQL/execution/?id=1")},
        "explained": explained,
        "command": command.read_text() if command.exists() else "",
    }


def page(spark: SparkSession, path: str) -> str:
    with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}{path}") as answer:
        return str(answer.read(), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
