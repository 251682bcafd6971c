"""What `spark_session` refuses before anything is started."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from twinbus.spark import session
from twinbus.spark.pipeline_errors import SparkMissingError, SparkNotStartedError
from twinbus.spark.session import MASTER, running_spark, spark_session

ASKING = """
import sys
from twinbus.spark.pipeline_errors import SparkNotStartedError
from twinbus.spark.session import spark_session

try:
    spark_session(master=sys.argv[1])
except SparkNotStartedError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"master": "locl[2]"}, r"master must be one of local\[N,F\].*not 'locl\[2\]'"),
        ({"master": "local[]"}, "master must be"),
        ({"master": "local[2,]"}, "master must be"),
        ({"master": ""}, "master must be"),
        ({"master": "spark://host"}, "master must be"),
        ({"master": "sc://host"}, "master must be"),
        ({"master": "local-cluster[2,6]"}, "master must be"),
        ({"remote": "spark://host:7077"}, r"remote must be sc://HOST"),
        ({"remote": "sc://"}, r"remote must be sc://HOST"),
        ({"master": "yarn", "remote": "sc://host"}, "master or remote, not both"),
        ({"slots": 0}, "slots must be 1 to 1024, not 0"),
        ({"slots": 1025}, "slots must be 1 to 1024, not 1025"),
        ({"memory": "4"}, "memory must be a number and m or g, such as 4g, not '4'"),
        ({"memory": "0g"}, "memory must be"),
        ({"config": {"sql.shuffle.partitions": "2"}}, r"config: Spark's settings begin with 'spark\.'"),
    ],
)
def test_a_bad_argument_is_refused_by_its_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spark_session(**arguments)
    with pytest.raises(ValueError, match=message), running_spark(**arguments):
        pass


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[*,2]",
        "local[12, 4]",
        "local-cluster[2,6,1024]",
        "spark://one:7077",
        "spark://one:7077,two:7077",
        "k8s://https://host:6443",
        "yarn",
    ],
)
def test_every_kind_of_master_is_known(master: str) -> None:
    assert MASTER.fullmatch(master)


def test_an_error_never_holds_the_token_of_a_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc")
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")  # else it is set, and stays so for the tests that follow
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.5)
    with pytest.raises(SparkNotStartedError, match=r"no Spark Connect server answers at 127\.0\.0\.1 within") as caught:
        spark_session(remote="sc://127.0.0.1:1/;token=SECRET")
    assert "SECRET" not in str(caught.value)
    with pytest.raises(ValueError, match="remote must be") as refused:
        spark_session(remote="http://127.0.0.1/;token=SECRET")
    assert "SECRET" not in str(refused.value)


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # In a process of its own: in this one Spark may run, for other tests, and then no master is asked.
    asked = [sys.executable, "-c", ASKING, f"spark://{address},127.0.0.1:99999"]
    shown = subprocess.run(asked, capture_output=True, check=True, text=True).stdout
    assert shown.strip() == f"no Spark master answers at {address} or 127.0.0.1:99999"


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SparkMissingError, match=r"pip install '.\[spark\]'"):
        spark_session()


def test_without_what_connect_needs_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(SparkMissingError, match=r"pip install '.\[connect\]'"):
        spark_session(remote="sc://127.0.0.1:1")


def test_the_module_itself_needs_no_pyspark() -> None:
    program = "import sys, twinbus.spark.session; print([name for name in sys.modules if name.startswith('pyspark')])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert shown.strip() == "[]"
