"""One Spark session for a small machine: two threads, one gigabyte, loopback only, no web page, no noise.

Importing this module starts nothing; :func:`open_session` starts the Java machine, which takes some ten seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
"""Spark 4 runs on no older Java."""
_JAVA_ANSWER_S: Final = 30.0

_QUIET_LOG: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
# The gateway announces a change of level unless its own is that of the root.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class SparkUnavailableError(RuntimeError):
    """Spark cannot start here; the text says what to install."""


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the session. The defaults fit two cores and leave room for a broker beside it."""

    threads: int = 2
    driver_memory: str = "1g"
    shuffle_partitions: int = 2
    short: bool = False
    """For jobs of seconds: compile fast and once, collect garbage on one thread, plan once, never split a file."""


SHORT_JOB: Final = SessionConfig(shuffle_partitions=1, short=True)
"""For inputs of some megabytes, where Spark spends its time on planning and compiling; large ones would lose by it."""


class Java(msgspec.Struct, frozen=True, kw_only=True):
    """The Java that Spark would use."""

    path: str
    version: int | None
    """Major version; ``None`` when it does not run or does not say."""


def find_java() -> Java | None:
    """That of ``JAVA_HOME``, whether or not it is there, else the one on the PATH; ``None`` without either."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWER_S, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return Java(path=path, version=None)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return Java(path=path, version=int(found.group(1)) if found else None)


def why_unavailable() -> str | None:
    """What keeps Spark from starting, as one sentence with the remedy; ``None`` when nothing does."""
    need = f"Spark needs Java {JAVA_MIN} or newer"
    java = find_java()
    if java is None:
        return f"{need}, and no java is on the PATH: install a JRE or set JAVA_HOME"
    home = os.environ.get("JAVA_HOME")
    remedy = "correct JAVA_HOME, or unset it to use the java on the PATH" if home else "install a newer JRE"
    where = f"JAVA_HOME points to {home}, " if home else ""
    if home and not Path(java.path).exists():
        return f"{need}, and {where}which has no bin/java: {remedy}"
    if java.version is None:
        return f"{need}, and {where}{'whose bin/java' if home else java.path} does not run: {remedy}"
    if java.version < JAVA_MIN:
        return f"{need}, and {where}{'which' if home else java.path} is Java {java.version}: {remedy}"
    return None


def _build(config: SessionConfig, workspace: Path) -> SparkSession:
    # Python workers must run in this very environment, also when it is not first on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log = workspace / "log4j2.properties"
    log.write_text(_QUIET_LOG, encoding="utf-8")
    java_options = [f"-Dlog4j2.configurationFile={log.as_uri()}", "-Duser.timezone=UTC"]
    if config.short:
        java_options += ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:+UseSerialGC"]
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": config.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.default.parallelism": str(config.threads),
        "spark.sql.shuffle.partitions": str(config.shuffle_partitions),
        "spark.sql.maxPlanStringLength": "8192",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": (workspace / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.local.dir": str(workspace / "local"),
    }
    builder = SparkSession.builder.master(f"local[{config.threads}]").appName("assay")
    if config.short:
        settings |= {
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.files.minPartitionNum": "1",
            "spark.sql.parquet.compression.codec": "uncompressed",
        }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


JOBS_AT_ONCE: Final = 2
"""Of a small job Spark spends most of the time planning, on one core: two at once use both."""

_Result = TypeVar("_Result")


def together(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Run tasks that each start Spark jobs, a few at a time; results in their order, the first error is raised."""
    with ThreadPoolExecutor(max_workers=JOBS_AT_ONCE, thread_name_prefix="spark-job") as pool:
        return list(pool.map(lambda task: task(), tasks))


@contextmanager
def open_session(config: SessionConfig | None = None) -> Iterator[SparkSession]:
    """A session for the body of the ``with``; its temporary files go away with it.

    A session that is already open in this process is lent and stays open. Raises :class:`SparkUnavailableError`.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    reason = why_unavailable()
    if reason is not None:
        raise SparkUnavailableError(reason)
    with tempfile.TemporaryDirectory(prefix="assay-spark-", ignore_cleanup_errors=True) as folder:
        spark = _build(config or SessionConfig(), Path(folder))
        try:
            yield spark
        finally:
            spark.stop()
