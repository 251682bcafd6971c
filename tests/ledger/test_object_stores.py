"""The ledger on S3 and on Azure Blob Storage, as real servers on this machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from tests.interop import node
from tests.ledger.object_stores import ObjectStoreServer, azure_server, s3_server
from tests.ledger.rows import DAY, HOUR, NOON, a_send
from typer.testing import CliRunner, Result

from twinbus.cli.main import app
from twinbus.ledger.compaction import compact
from twinbus.ledger.expiry import expire, expired_before
from twinbus.ledger.ledger_errors import LedgerNotFoundError
from twinbus.ledger.ledger_reader import newest, read_ledger
from twinbus.ledger.locations import locate
from twinbus.ledger.store import open_store
from twinbus.ledger.writer import LedgerWriter

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TODAY = "day=2026-11-16"
TOMORROW = NOON + DAY


@pytest.fixture(scope="module", params=["s3", "azure"])
def server(request: pytest.FixtureRequest) -> Iterator[ObjectStoreServer]:
    if request.param == "s3":
        with s3_server() as running:
            yield running
        return
    cache = request.config.cache
    assert cache is not None
    modules = node.install(cache.mkdir("azurite"), HERE / "azurite")
    with azure_server(modules) as running:
        yield running


@pytest.fixture
def ledger(server: ObjectStoreServer, request: pytest.FixtureRequest) -> str:
    """The URL of a ledger that is not there yet."""
    return f"{server.url}/{request.function.__name__}/ledger"


def write(
    server: ObjectStoreServer, url: str, prefix: str, *, files: int = 3, ts: int = NOON, at: int = NOON
) -> set[str]:
    """Write files of two rows each; return the ids."""
    ids = set()
    for number in range(files):
        with LedgerWriter(url, storage_options=server.options, now_us=lambda: at) as writer:
            for row in range(2):
                ids.add(f"{prefix}-{number}-{row}")
                writer.record(a_send(f"{prefix}-{number}-{row}", ts=ts))
            writer.request_flush().result(60)
    return ids


def message_ids(server: ObjectStoreServer, url: str) -> Counter[str]:
    contents = read_ledger(url, storage_options=server.options)
    assert contents.unreadable == []
    return Counter(contents.table["message_id"].to_pylist())


def names_of(server: ObjectStoreServer, url: str) -> list[str]:
    return open_store(url, server.options).files(TODAY)


def test_rows_come_back_and_only_where_they_were_written(server: ObjectStoreServer, ledger: str) -> None:
    with pytest.raises(LedgerNotFoundError, match="there is no ledger at "):
        read_ledger(ledger, storage_options=server.options)
    ids = write(server, ledger, "a")
    ids |= write(server, ledger, "b", ts=NOON - DAY)
    assert message_ids(server, ledger) == dict.fromkeys(ids, 1)
    assert len(names_of(server, ledger)) == 3
    assert newest(ledger, 2, storage_options=server.options).table.num_rows == 2
    sibling = f"{ledger}-2"
    write(server, sibling, "c", files=1)
    assert message_ids(server, ledger) == dict.fromkeys(ids, 1)


def test_sparks_form_of_the_url_is_the_same_ledger(server: ObjectStoreServer, ledger: str) -> None:
    ids = write(server, ledger, "a")
    spark = locate(ledger, server.options).spark
    assert spark.startswith(("s3a://twinbus/", "abfss://twinbus@contoso.dfs.core.windows.net/"))
    assert message_ids(server, spark) == dict.fromkeys(ids, 1)


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # the Azure SDK does
def test_a_large_file_is_stored_whole_and_again_under_the_same_name(server: ObjectStoreServer, ledger: str) -> None:
    store = open_store(ledger, server.options)
    data = bytes(range(256)) * 50_000
    for _ in range(2):
        store.put(TODAY, "large", data)
    assert store.sizes(TODAY) == {"large": len(data)}
    with store.open(TODAY, "large") as file:
        assert file.read() == data
    store.delete(TODAY, "large")
    store.delete(TODAY, "large")
    assert store.files(TODAY) == []
    with pytest.raises(FileNotFoundError):
        store.open(TODAY, "large").close()


def test_compaction_keeps_every_row_once(server: ObjectStoreServer, ledger: str) -> None:
    ids = write(server, ledger, "a", files=5)
    done = compact(ledger, storage_options=server.options, now_us=lambda: TOMORROW)
    assert (done.replaced_files, done.new_files, done.rows) == (5, 1, 10)
    assert len(names_of(server, ledger)) == 7
    assert message_ids(server, ledger) == dict.fromkeys(ids, 1)
    ids |= write(server, ledger, "late", files=1, at=TOMORROW + 1)
    compact(ledger, storage_options=server.options, now_us=lambda: TOMORROW + HOUR)
    assert message_ids(server, ledger) == dict.fromkeys(ids, 1)
    done = compact(ledger, storage_options=server.options, now_us=lambda: TOMORROW + 3 * DAY)
    assert done.removed_files == 7
    compacted, sidecar = names_of(server, ledger)
    assert sidecar == f"{compacted}.replaces"
    assert message_ids(server, ledger) == dict.fromkeys(ids, 1)


def test_old_days_are_expired(server: ObjectStoreServer, ledger: str) -> None:
    write(server, ledger, "old", ts=NOON - 3 * DAY)
    compact(ledger, storage_options=server.options, now_us=lambda: NOON)
    ids = write(server, ledger, "new")
    before = date(2026, 11, 15)
    assert expire(ledger, before, dry_run=True, storage_options=server.options, now_us=lambda: NOON).files == 5
    done = expire(ledger, before, storage_options=server.options, now_us=lambda: NOON)
    assert [(day.day, day.files) for day in done.days] == [(date(2026, 11, 13), 5)]
    assert done.bytes > 1000
    assert message_ids(server, ledger) == dict.fromkeys(ids, 1)
    assert expired_before(open_store(ledger, server.options)) == before
    assert expire(ledger, before, storage_options=server.options, now_us=lambda: NOON).days == []


def run(server: ObjectStoreServer, *arguments: str) -> Result:
    options = [
        f"--storage-option={key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in server.options.items()
    ]
    result = CliRunner().invoke(app, ["ledger", *arguments, *options], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert server.secret not in result.output
    return result


def test_commands_take_the_options_of_the_store(server: ObjectStoreServer, ledger: str) -> None:
    write(server, ledger, "a", files=3, ts=NOON - 400 * DAY)
    assert len(json.loads(run(server, "show", ledger, "--json").stdout)["rows"]) == 6
    assert json.loads(run(server, "compact", ledger, "--json").stdout)["new_files"] == 1
    assert json.loads(run(server, "expire", ledger, "--before", "2026-01-01", "--json").stdout)["files"] == 5
    assert run(server, "show", ledger).stdout == "no rows\n"
    missing = run(server, "show", f"{ledger}/nowhere")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "there is no ledger at " in missing.stderr
