"""A quiet local Spark for the demo. Whatever Spark has to say goes into a log file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import SemiStreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
_INSTALLERS = {
    "apt-get": "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless",
    "dnf": "sudo dnf install -y java-17-openjdk-headless",
    "brew": "brew install --cask temurin@17",
}


def task_slots() -> int:
    """Tasks that run at a time: a core each, but at least two so that there is something to see."""
    return max(2, min(8, os.cpu_count() or 2))


def check_requirements() -> None:
    """Say what is missing before any work is done."""
    try:
        import pandas  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SemiStreamError(
            f"the demo runs on Spark, and {error.name} is not installed: "
            "pip install 'semistream[spark,cli]'"
        ) from None
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    found = _java_version(java) if java else None
    if found is not None and found >= LEAST_JAVA:
        return
    have = "none was found" if found is None else f"{java} is version {found}"
    if home:
        remedy = f"point JAVA_HOME ({home}) at a newer one, or unset it"
    else:
        known = (line for tool, line in _INSTALLERS.items() if shutil.which(tool))
        remedy = next(known, f"install a Java runtime, version {LEAST_JAVA} or newer")
    raise SemiStreamError(f"Spark needs Java {LEAST_JAVA} or newer, and {have}: {remedy}")


def _java_version(java: str) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else None


@contextmanager
def local_spark(scratch: Path, log: Path, progress_kept: int) -> Iterator[SparkSession]:
    """Spark with its defaults but for what keeps it quiet and in one folder."""
    from pyspark.sql import SparkSession

    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.log.level": "WARN",
        "spark.sql.warehouse.dir": str(scratch / "tables"),
        "spark.sql.session.timeZone": "UTC",
        # The default, INT96, is a form that other readers of Parquet frown upon.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.numRecentProgressUpdates": str(progress_kept),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    # local[2] would fail the job at the first lost task; [2,4] retries, as a cluster does.
    builder = SparkSession.builder.master(f"local[{task_slots()},4]").appName("semistream demo")
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with _environment(python):
        with _output_to(log):  # Java keeps the files it was started with
            spark = builder.config(map=settings).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """What this process and its children print goes to `log`, at the level of file descriptors."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for to, descriptor in enumerate(saved, 1):
            os.dup2(descriptor, to)
            os.close(descriptor)
        os.close(target)
