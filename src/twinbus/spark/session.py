"""Build or find the Spark session to work with."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .java import find_java, java_home_for_spark
from .pipeline_errors import SparkMissingError, SparkNotStartedError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from .java import Java

logger = logging.getLogger("twinbus.spark")

#: Ten pumps, one for each backlog queue, and two to spare: tasks wait for the network, not for a core.
SLOTS = 12
MAX_SLOTS = 1024
CONNECT_SECONDS = 30.0
#: Attempts of a task. Spark's own `local[12]` has one.
ATTEMPTS = 4
GIB = 1024**3
#: Bounds of Spark's memory by default, which is a quarter of the machine's.
LEAST_MEMORY, MOST_MEMORY = GIB, 8 * GIB

LOCAL = re.compile(r"local(-cluster)?(\[.*\])?")
MASTER = re.compile(
    r"local|local\[(\d+|\*)(,\s*\d+)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^\s/]+:\d+(,[^\s/]+:\d+)*|k8s://\S+|yarn"
)
STANDALONE = "spark://"
MEMORY = re.compile(r"[1-9]\d*[mg]")

#: Spark hides settings whose name or value has one of these words from its pages and event logs. Its own list has
#: neither connection strings nor the account keys of stores.
SECRET_WORDS = (
    r"(?i)secret|password|token|access[.]?key|connection.?string|account[.]?key|shared.?access|signature|credential"
    r"|\bsas\b|private.?key"
)
#: Spark hides these from the text of its plans: secrets in the forms in which Azure writes them.
SECRET_TEXTS = r"(?i)((shared)?access(key|signature)|accountkey|\bsig)=[^;&,\s]+|\beyJ[\w-]+\.[\w-]+\.[\w-]*"

TIME_ZONE = "spark.sql.session.timeZone"
#: Settings that results depend on, or that hide secrets. Every session gets them, existing ones included.
SESSION = {
    TIME_ZONE: "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.redaction.string.regex": SECRET_TEXTS,
}
#: Java needs these when it starts; Spark gets all others later.
AT_START = (
    "spark.driver.memory",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraClassPath",
    "spark.jars.packages",
)


def require_spark() -> None:
    """Raise SparkMissingError if a package of the extra `spark` is missing, without importing any."""
    if any(find_spec(name) is None for name in ("numpy", "pandas", "pyarrow", "pyspark")):
        raise SparkMissingError


def spark_session(
    *,
    master: str | None = None,
    remote: str | None = None,
    app_name: str = "twinbus",
    slots: int = SLOTS,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on this machine, on a cluster (`master`), or of a Spark Connect server (`remote`).

    With neither, uses the session of the surrounding notebook or job, if there is one: a new session of the same Spark,
    so that its own settings stay as they are (with Spark Connect, the same session). Else starts Spark on this machine,
    with `slots` tasks at once. `running_spark` also stops it.

    Args:
        memory: Memory, such as `4g`, of Spark on this machine, or of each executor of the cluster.
        config: More settings of Spark. They take precedence.

    Raises:
        ValueError: An argument is wrong.
        SparkMissingError: pyspark is not installed.
        JavaMissingError: There is no Java that this Spark runs on.
        SparkNotStartedError: Spark did not start, or the cluster cannot be reached.
    """
    config = dict(config or {})
    _check(master, remote, slots, memory, config)
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissingError from None
    if remote is not None:
        return _remote(remote, app_name, config)
    if master is None:
        if (active := SparkSession.getActiveSession()) is not None:
            return _with_settings(_separate_session(active), config)
        if _is_submitted():
            # The settings of the job name the master.
            return _with_settings(SparkSession.builder.appName(app_name).getOrCreate(), config)
        if given := os.environ.get("SPARK_REMOTE"):
            return _remote(given, app_name, config)
        master = f"local[{slots},{ATTEMPTS}]"
    return _start(master, app_name, memory, config)


@contextmanager
def running_spark(
    *,
    master: str | None = None,
    remote: str | None = None,
    app_name: str = "twinbus",
    slots: int = SLOTS,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """As `spark_session`; stops Spark at the end, unless it was running before."""
    is_ours = not is_running()
    spark = spark_session(master=master, remote=remote, app_name=app_name, slots=slots, memory=memory, config=config)
    try:
        yield spark
    finally:
        if is_ours:
            spark.stop()


def is_running() -> bool:
    """Whether this process has a Spark session, its own or that of its job."""
    if "pyspark" not in sys.modules:
        return _is_submitted()
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None or _is_submitted()


def _is_submitted() -> bool:
    """Whether spark-submit or Databricks started this process, and Spark with it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "DATABRICKS_RUNTIME_VERSION" in os.environ


def _check(master: str | None, remote: str | None, slots: int, memory: str | None, config: Mapping[str, str]) -> None:
    if master is not None and remote is not None:
        raise ValueError("give master or remote, not both")
    if master is not None and not MASTER.fullmatch(master):
        raise ValueError(
            "master must be one of local[N,F], local-cluster[N,C,M], spark://HOST:PORT, k8s://URL and yarn,"
            f" not {master[:80]!r}"
        )
    if remote is not None:
        _host_of(remote)
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"slots must be 1 to {MAX_SLOTS}, not {slots}")
    if memory is not None and not MEMORY.fullmatch(memory):
        raise ValueError(f"memory must be a number and m or g, such as 4g, not {memory[:80]!r}")
    for name in config:
        if not name.startswith("spark."):
            raise ValueError(f"config: Spark's settings begin with 'spark.', not so {name[:80]!r}")


def _host_of(remote: str) -> str:
    """The part of the address that is no secret: the parameters may have a token."""
    parts = urlsplit(remote)
    if parts.scheme != "sc" or not parts.hostname:
        raise ValueError("remote must be sc://HOST[:PORT][/;PARAMETERS]")
    return parts.hostname


def _remote(remote: str, app_name: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    host = _host_of(remote)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it writes to standard error otherwise
    try:
        _await_server(remote, host)
        return _with_settings(SparkSession.builder.remote(remote).appName(app_name).getOrCreate(), config)
    except ImportError:
        raise SparkMissingError(
            "Spark Connect needs the extra `connect`: pip install '.[connect]' in a checkout"
        ) from None
    except PySparkException as error:
        raise SparkNotStartedError(f"no Spark session at {host}: {reason_of(error)}") from error


def _await_server(remote: str, host: str) -> None:
    """Raise SparkNotStartedError unless the server answers: PySpark itself retries for more than ten minutes."""
    import grpc
    import pyspark.sql.connect.client as connect

    # Spark 3.5 has one class, under the shorter name.
    builder: Any = getattr(connect, "DefaultChannelBuilder", connect.ChannelBuilder)
    with builder(remote).toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            raise SparkNotStartedError(
                f"no Spark Connect server answers at {host} within {CONNECT_SECONDS:g} s;"
                " a token in the address means TLS"
            ) from None


def _separate_session(active: SparkSession) -> SparkSession:
    """A session of the same Spark with its own settings; with Spark Connect the same session.

    There, new sessions exist only since 4.3, and a process that does not stop them never ends.
    """
    return active if type(active).__module__.startswith("pyspark.sql.connect") else active.newSession()


def _with_settings(session: SparkSession, config: Mapping[str, str]) -> SparkSession:
    """Set what results depend on, and `config`, in an existing session."""
    from pyspark.errors import PySparkException

    for name, value in {**SESSION, **config}.items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            if name in config or name == TIME_ZONE:
                raise SparkNotStartedError(f"this Spark does not let {name} be set: {reason_of(error)}") from error
            logger.info("This Spark does not let %s be set", name)  # some hosted ones have their own redaction
    return session


def _start(master: str, app_name: str, memory: str | None, config: Mapping[str, str]) -> SparkSession:
    """Start Java, then Spark in it.

    Settings reach Spark through its authenticated socket, because the command line is readable for everyone on the
    machine; only those that Java needs to start are on it.
    """
    import pyspark
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise SparkNotStartedError("Spark runs in this process already: stop it, or give no master to use it")
    if master.startswith(STANDALONE):
        _await_master(master)
    java = find_java(pyspark.__version__)
    settings = _settings(master, app_name, memory, java, config)
    environment = {"JAVA_HOME": str(java_home_for_spark(java))}
    if LOCAL.fullmatch(master):
        # Workers are on this machine and use this Python.
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with _environment(environment):
        try:
            gateway = SparkContext._gateway  # of a Spark that was stopped
            if gateway is None:
                at_start = {name: settings[name] for name in AT_START if name in settings}
                gateway = launch_gateway(_conf(at_start))  # type: ignore[no-untyped-call]
            return SparkSession(SparkContext(conf=_conf(settings), gateway=gateway))
        except Exception as error:
            raise SparkNotStartedError(
                f"Spark did not start with {java.executable} on {master}: {reason_of(error)}"
            ) from error


def _await_master(master: str) -> None:
    """Raise SparkNotStartedError unless a master answers: Spark itself retries for minutes."""
    addresses = master.removeprefix(STANDALONE).split(",")
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS / len(addresses)).close()
        except (OSError, OverflowError):
            continue
        return
    raise SparkNotStartedError(f"no Spark master answers at {' or '.join(addresses)}")


def _conf(settings: Mapping[str, str]) -> SparkConf:
    from pyspark import SparkConf

    return SparkConf(loadDefaults=False).setAll(list(settings.items()))


def reason_of(error: Exception) -> str:
    """The first line of an error of Java or PySpark, without secrets."""
    cause = getattr(error, "java_exception", error)
    line = (str(cause).splitlines() or [""])[0]
    return re.sub(SECRET_TEXTS, "(hidden)", line)[:300] or type(error).__name__


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while Spark starts. It reads them only then."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _settings(master: str, app_name: str, memory: str | None, java: Java, config: Mapping[str, str]) -> dict[str, str]:
    settings = {
        **SESSION,
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.redaction.regex": SECRET_WORDS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Not used, but Spark creates the folder, by default in the working folder.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "twinbus-no-warehouse")),
        "spark.driver.extraJavaOptions": _java_options(java, config.get("spark.driver.extraJavaOptions")),
    }
    if LOCAL.fullmatch(master):
        settings |= {
            # Only this machine needs to reach it.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": memory or _default_memory(),
        }
    elif memory:
        settings["spark.executor.memory"] = memory
    return settings | {name: value for name, value in config.items() if name != "spark.driver.extraJavaOptions"}


def _java_options(java: Java, more: str | None) -> str:
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    options = [f"-Dlog4j2.configurationFile={log}"]
    if java.version >= 24:  # warns of what Spark's libraries do
        options += ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return " ".join([*options, more] if more else options)


def _default_memory() -> str:
    total = 4 * LEAST_MEMORY
    if sys.platform != "win32":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of the container
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return f"{min(max(total // 4, LEAST_MEMORY), MOST_MEMORY) // 1024**2}m"
