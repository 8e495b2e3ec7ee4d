"""On clusters: two executors of one machine, each in a JVM of its own, without anything shared but
files. A child process is the driver (tests/helpers/cluster_child.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pyspark
import pytest

import semistream as ss
from semistream.spark import package
from semistream.testing import assert_same_rows, oracle
from tests.helpers.cluster_child import MASTER, SALES
from tests.helpers.paths import LOG_CONFIG, ROOT, program
from tests.helpers.spark_data import PATIENCE, SPARK_HOWS, wait_for, write_files

pytestmark = pytest.mark.slow

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # JVMs that start fast
NO_REST = "-Dspark.master.rest.enabled=false"
SITE = Path(pyspark.__file__).parents[1]


# --- a cluster, and an application on it --------------------------------------------------------


def spark_home(folder: Path) -> Path:
    """PySpark's own files; what Spark writes beside them stays in our folder."""
    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def environment(home: Path) -> dict[str, str]:
    loopback = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1"}
    daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {NO_REST}"}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return os.environ | {"SPARK_HOME": str(home)} | loopback | daemons | python


@contextmanager
def process(words: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs until the end of the block, with all that it started."""
    with open(log, "w") as output:
        started = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment(home),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        family = [psutil.Process(started.pid)] if started.poll() is None else []
        family += [child for parent in family for child in parent.children(recursive=True)]
        for member in family:
            if member.is_running():
                member.kill()
        started.wait()


@contextmanager
def standalone(folder: Path, home: Path) -> Iterator[str]:
    """A master and two workers of one core each, on loopback; gives the master's address."""
    start = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.{0}.{1}"]

    def words(kind: str, *more: str) -> list[str]:
        name = start[1].format(kind.lower(), kind)
        return [start[0], name, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *more]

    with ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(process(words("Master"), home, log))
        where = re.compile(r"spark://127\.0\.0\.1:\d+")
        wait_for("the master", lambda: where.search(log.read_text()))
        address = where.search(log.read_text())[0]
        for i in range(2):
            more = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{i}")]
            words_ = words("Worker", *more, address)
            stack.enter_context(process(words_, home, folder / f"worker-{i}.log"))
        yield address


def config(folder: Path) -> dict[str, str]:
    return {
        "spark.driver.memory": "1g",
        "spark.task.maxFailures": "3",
        "spark.executor.memory": "600m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{QUICK} -Dlog4j2.configurationFile={LOG_CONFIG}",
        "spark.executor.extraJavaOptions": f"{QUICK} -Dlog4j2.configurationFile={LOG_CONFIG}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.checkpointLocation": str(folder / "checkpoints"),  # pins go there, too
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


class Driver:
    def __init__(self, started: subprocess.Popen[bytes], folder: Path) -> None:
        self.started, self.folder = started, folder

    def wait_for(self, what: str, condition) -> None:
        ended = self.started.poll
        wait_for(what, lambda: condition() or ended() is not None, patience=3 * PATIENCE)
        assert condition(), f"{what}: {self.log}"

    def finish(self) -> dict:
        self.wait_for("the end", lambda: self.started.poll() is not None)
        assert self.started.returncode == 0, self.log
        return json.loads((self.folder / "words.json").read_text())

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()[-20_000:]


@contextmanager
def driver(master: str, folder: Path, home: Path, plan: list[str]) -> Iterator[Driver]:
    write_files(SALES, folder / "sales", 2)
    (folder / "answers").mkdir()
    (folder / "config.json").write_text(json.dumps(config(folder)))
    words = [*program("cluster_child"), master, str(folder), *plan]
    with process(words, home, folder / "driver.log") as started:
        yield Driver(started, folder)


def kill_executor(running: Driver) -> None:
    """The JVM above the worker that waits; one of those that this test has started."""
    mark = running.folder / "reached"
    running.wait_for("the gate", lambda: mark.exists() and mark.read_text().endswith("\n"))
    above = psutil.Process(int(mark.read_text())).parents()
    (executor,) = [p for p in above if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline())]
    assert os.getpid() in [p.pid for p in executor.parents()]
    os.kill(executor.pid, signal.SIGKILL)


def check_answers(folder: Path) -> None:
    for spark_how, how in SPARK_HOWS.items():
        expected = oracle(SALES, MASTER, "id", how)
        for kind in ("batch", "stream"):
            answer = pq.read_table(folder / "answers" / f"{kind}-{spark_how}.parquet")
            assert_same_rows(answer, expected)
    assert (folder / "repeated").exists(), "the task of the killed executor ran again"
    killed = pq.read_table(folder / "answers" / "killed.parquet")
    assert_same_rows(killed, oracle(SALES, MASTER, "id", "left"))


# --- the tests ----------------------------------------------------------------------------------


def test_a_standalone_cluster(tmp_path: Path) -> None:
    """Every join type, batch and stream; and an executor killed within a micro-batch."""
    home = spark_home(tmp_path)
    with (
        standalone(tmp_path, home) as master,
        driver(master, tmp_path, home, ["joins", "killed"]) as running,
    ):
        kill_executor(running)
        running.finish()
    check_answers(tmp_path)


def python_without(folder: Path, *paths: Path) -> str:
    """A Python whose packages are those of these folders. Where a folder is named in a .pth file,
    its own .pth files do not count: they would bring the package that is installed for editing."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text("".join(f"{path}\n" for path in paths))
    return str(folder / "bin" / "python")


def make_pythons(folder: Path) -> None:
    """Three that cannot work; the zip and the archive that can."""
    without = folder / "without-numba"
    without.mkdir()
    for entry in SITE.iterdir():
        if not entry.name.startswith("numba") and entry.suffix != ".pth":
            (without / entry.name).symlink_to(entry)
    ours = Path(ss.__file__).parents[1]
    other = folder / "other"
    package(folder / "semistream.zip")
    with zipfile.ZipFile(folder / "semistream.zip") as archive:
        archive.extractall(other)
    init = other / "semistream" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{ss.__version__}"', '"0.0.9"'))
    pythons = {
        "bare": python_without(folder / "bare", SITE),
        "no-numba": python_without(folder / "no-numba", without, ours),
        "other-version": python_without(folder / "other-version", other, SITE),
    }
    (folder / "pythons.json").write_text(json.dumps(pythons))
    python_without(folder / "environment", SITE)
    with zipfile.ZipFile(folder / "semistream.zip") as archive:
        archive.extractall(next((folder / "environment").glob("lib/python*/site-packages")))
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as tar:
        tar.add(folder / "environment", arcname=".")


def test_a_local_cluster_and_the_package_shipped_to_it(tmp_path: Path) -> None:
    """The same; and executors whose Python lacks the package, which then is sent to them."""
    home = spark_home(tmp_path)
    make_pythons(tmp_path)
    plan = ["joins", "killed", "lacking", "archived", "shipped"]
    with driver("local-cluster[2,1,1024]", tmp_path, home, plan) as running:
        kill_executor(running)
        words = running.finish()
    check_answers(tmp_path)
    check_refusals(words, json.loads((tmp_path / "pythons.json").read_text()))
    for name, origin in (("zip", "/semistream.zip/"), ("archive", "/environment/lib/")):
        answer = pq.read_table(tmp_path / "answers" / f"{name}.parquet")
        (where,) = set(answer["origin"].to_pylist())
        assert origin in where
        assert_same_rows(answer.drop_columns("origin"), oracle(SALES, MASTER, "id", "left"))
    assert words["built"] >= 1
    assert words["upserted"] == 2


def check_refusals(words: dict, pythons: dict[str, str]) -> None:
    """One message, with the Python it is about, and nothing before or behind it but Spark's."""
    remedies = ["pip install semistream==", "semistream package semistream.zip", "spark.archives"]
    expected = {
        "bare": ["semistream is not installed", *remedies],
        "no-numba": ["numba, which semistream needs, is not installed", "pip install numba"],
        "other-version": ["semistream is 0.0.9 in", f"{ss.__version__} on the driver", *remedies],
    }
    for name, parts in expected.items():
        first, second = words[name]["text"].splitlines()
        assert first == "An exception was thrown from the Python worker:"
        assert second == f"semistream.errors.InstallError: {words[name]['cause']}"
        for part in [*parts, pythons[name]]:
            assert part in second
    one = words["bare"]["cause"]
    assert one in words["stream"]["text"].splitlines()[0]
    assert [words[name]["cause"] for name in ("stream", "build", "upsert")] == [one] * 3
    assert [words[name]["kind"] for name in ("build", "upsert")] == ["InstallError"] * 2
    assert not any('File "' in entry["text"] for entry in words.values() if isinstance(entry, dict))
