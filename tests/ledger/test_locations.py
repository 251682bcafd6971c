"""Tests the translation of paths and URLs for fsspec and Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from twinbus.ledger.locations import escape_glob, locate, without_secrets
from twinbus.ledger.store import open_store

SECRET = "Zm9vYmFyYmF6"


@pytest.mark.parametrize(
    ("given", "for_fsspec", "for_spark"),
    [
        ("ledger", "/data/ledger", "file:///data/ledger"),
        ("../a/./ledger/", "/a/ledger", "file:///a/ledger"),
        ("/a/ledger", "/a/ledger", "file:///a/ledger"),
        ("//a/ledger", "/a/ledger", "file:///a/ledger"),
        ("/a b/l%20{x}", "/a b/l%20{x}", "file:///a b/l%20{x}"),
        ("file:///a%20b/ledger", "/a b/ledger", "file:///a b/ledger"),
        ("file://localhost/a", "/a", "file:///a"),
        ("file:/a", "/a", "file:///a"),
        ("odd:name", "/data/odd:name", "file:///data/odd:name"),
        ("C:\\data\\ledger", "C:\\data\\ledger", "file:///C:/data/ledger"),
        ("c:/data/ledger", "c:\\data\\ledger", "file:///c:/data/ledger"),
        ("file:///C:/data", "C:\\data", "file:///C:/data"),
        ("\\\\server\\share\\ledger", "\\\\server\\share\\ledger", "file:////server/share/ledger"),
        ("s3://bucket/a/ledger", "s3://bucket/a/ledger", "s3a://bucket/a/ledger"),
        ("s3a://bucket/a//b/../ledger/", "s3://bucket/a/ledger", "s3a://bucket/a/ledger"),
        ("S3://bucket", "s3://bucket", "s3a://bucket"),
        ("gs://bucket/ledger", "gs://bucket/ledger", "gs://bucket/ledger"),
        ("gcs://bucket/ledger", "gs://bucket/ledger", "gs://bucket/ledger"),
        ("hdfs://name:8020/ledger", "hdfs://name:8020/ledger", "hdfs://name:8020/ledger"),
        ("webhdfs://name/ledger", "webhdfs://name/ledger", "webhdfs://name/ledger"),
        ("memory://ledger", "memory://ledger", "memory://ledger"),
        ("oci://bucket@space/ledger?x", "oci://bucket@space/ledger?x", "oci://bucket@space/ledger?x"),
        ("dbfs:/ledger", "/dbfs/ledger", "dbfs:/ledger"),
        ("dbfs:///ledger", "/dbfs/ledger", "dbfs:/ledger"),
        ("/dbfs/ledger", "/dbfs/ledger", "dbfs:/ledger"),
        ("/Volumes/main/bus/ledger", "/Volumes/main/bus/ledger", "/Volumes/main/bus/ledger"),
        ("dbfs:/Volumes/main/bus/ledger", "/Volumes/main/bus/ledger", "/Volumes/main/bus/ledger"),
        ("file:///Volumes/disk/ledger", "/Volumes/disk/ledger", "file:///Volumes/disk/ledger"),
        ("file:///dbfs/ledger", "/dbfs/ledger", "file:///dbfs/ledger"),
    ],
)
def test_locate_translates_url_for_fsspec_and_spark(given: str, for_fsspec: str, for_spark: str) -> None:
    location = locate(given, working_folder="/data", is_windows=False)
    assert (location.fsspec, location.spark) == (for_fsspec, for_spark)


@pytest.mark.parametrize(
    ("given", "options", "for_fsspec", "for_spark"),
    [
        ("abfss://c@acc.dfs.core.windows.net/p", {"account_name": "acc"}, "abfs://c/p", None),
        ("abfs://c@acc.dfs.core.windows.net/p", {"account_name": "acc"}, "abfs://c/p", None),
        (
            "az://c@acc.blob.core.windows.net/p/",
            {"account_name": "acc"},
            "abfs://c/p",
            "abfss://c@acc.dfs.core.windows.net/p",
        ),
        (
            "abfss://c@acc.dfs.core.chinacloudapi.cn/p",
            {"account_name": "acc", "account_host": "acc.blob.core.chinacloudapi.cn"},
            "abfs://c/p",
            None,
        ),
        (
            "abfss://jobs@onelake.dfs.fabric.microsoft.com/p",
            {"account_name": "onelake", "account_host": "onelake.blob.fabric.microsoft.com"},
            "abfs://jobs/p",
            None,
        ),
        (
            "abfss://c@acc.z21.dfs.storage.azure.net/p",
            {"account_name": "acc", "account_host": "acc.z21.blob.storage.azure.net"},
            "abfs://c/p",
            None,
        ),
        ("abfs://c@127.0.0.1:10000/p", {}, "abfs://c/p", None),
    ],
)
def test_azure_url_gives_container_and_account(
    given: str, options: dict[str, str], for_fsspec: str, for_spark: str | None
) -> None:
    location = locate(given)
    assert (location.fsspec, location.options, location.spark) == (for_fsspec, options, for_spark or given)


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "az"])
def test_azure_account_may_be_storage_option(scheme: str) -> None:
    location = locate(f"{scheme}://c/p", {"account_name": "acc", "account_key": SECRET})
    assert (location.fsspec, location.options) == ("abfs://c/p", {})
    assert location.spark == "abfss://c@acc.dfs.core.windows.net/p"
    with pytest.raises(ValueError, match=f"{scheme}://c/p does not name a storage account, which Spark needs"):
        _ = locate(f"{scheme}://c/p").spark


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "path must not be empty"),
        ("a\0b", "must not contain a NUL"),
        ("s3://", "must name a bucket"),
        ("s3a:///p", "must name a bucket"),
        (f"s3://key:{SECRET}@bucket/p", "must not have a user or password"),
        (f"s3://bucket/p?sig={SECRET}", "must not have a query"),
        (f"abfss://c@acc.dfs.core.windows.net/p?sig={SECRET}", "must not have a query"),
        (f"abfss://c:{SECRET}@acc.dfs.core.windows.net/p", "must not have a password"),
        ("abfss://@acc.dfs.core.windows.net/p", "must name a container"),
        ("abfss://acc.dfs.core.windows.net/c/p", "must name a container"),
        ("file://server/share", "must not name a host"),
    ],
)
def test_malformed_url_is_rejected_without_its_secrets(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        locate(given)
    assert SECRET not in str(raised.value)


def test_conflicting_azure_accounts_are_rejected() -> None:
    with pytest.raises(ValueError, match="account_name must be acc, as in the URL"):
        locate("abfss://c@acc.dfs.core.windows.net/p", {"account_name": "other"})


_segment = st.text(st.characters(exclude_characters="/\\?\0", exclude_categories=["Cs"]), min_size=1)
_paths = st.lists(_segment.filter(lambda segment: segment not in (".", "..")), max_size=4).map("/".join)
_bucket = st.from_regex(r"[a-z0-9][a-z0-9\-]{1,20}", fullmatch=True)


@given(_bucket, _paths)
def test_s3_url_round_trips(bucket: str, path: str) -> None:
    location = locate(f"s3://{bucket}/{path}")
    assert locate(location.spark) == location
    assert locate(location.fsspec) == location
    assert location.spark.removeprefix("s3a://") == location.fsspec.removeprefix("s3://")


@given(_bucket, _bucket, _paths)
def test_azure_url_round_trips(container: str, account: str, path: str) -> None:
    location = locate(f"abfss://{container}@{account}.dfs.core.windows.net/{path}")
    assert locate(location.spark) == location
    again = locate(location.fsspec, location.options)
    assert (again.fsspec, again.spark) == (location.fsspec, location.spark)


@given(_paths)
def test_local_path_keeps_every_character(path: str) -> None:
    assume(not path.startswith(("Volumes", "dbfs")))
    location = locate(f"/{path}", is_windows=False)
    assert location.fsspec == os.path.normpath(f"/{path}")
    assert location.spark == f"file://{location.fsspec}"


@given(st.text(min_size=1))
def test_locate_translates_or_rejects_any_text(text: str) -> None:
    try:
        location = locate(text)
    except ValueError:
        return
    assert location.fsspec


_word = st.from_regex(r"[a-z]{8}", fullmatch=True)


@given(st.sampled_from(["s3", "abfss", "gs", "webhdfs", "ftp", "simplecache::ftp", "memory"]), _word, _word)
def test_texts_for_people_hide_user_password_and_query(scheme: str, user: str, password: str) -> None:
    user, password = f"user-{user}", f"password-{password}"
    url = f"{scheme}://{user}:{password}@host/path?signature={password}"
    assert password not in without_secrets(url)
    assert scheme == "abfss" or user not in without_secrets(url)
    try:
        text = locate(url).shown
    except ValueError as error:
        text = str(error)
    assert password not in text


@given(st.text())
def test_escape_glob_escapes_every_glob_character(path: str) -> None:
    escaped = escape_glob(path)
    unescaped, index = [], 0
    while index < len(escaped):
        index += escaped[index] == "\\"
        unescaped.append(escaped[index])
        assert escaped[index] not in "{}[]*?\\" or escaped[index - 1] == "\\"
        index += 1
    assert "".join(unescaped) == path


def test_forms_of_local_path_open_the_same_store(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    escaped = str(folder).replace(" ", "%20")
    assert {open_store(given).place for given in (folder, str(folder), f"file://{escaped}", f"file:{escaped}")} == {
        str(folder)
    }
