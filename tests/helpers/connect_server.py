"""A private Spark Connect server on this machine, for clients in processes of their own: a process
with a classic session cannot have one of the other kind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.paths import LOG_CONFIG, ROOT


@dataclass(frozen=True)
class ConnectServer:
    url: str
    warehouse: Path  # where its tables are

    def run(self, *command: object) -> str:
        """Run Python as a client of this server; returns what it prints."""
        words = [sys.executable, *map(str, command)]
        env = os.environ | {"SPARK_REMOTE": self.url, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    import pyspark

    folder = tmp_path_factory.mktemp("connect")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Dlog4j2.configurationFile={LOG_CONFIG}",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    words = [f"{Path(pyspark.__file__).parent}/bin/spark-submit", "--master", "local[2]"]
    for name, value in config.items():
        words += ["--conf", f"{name}={value}"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with open(folder / "log", "w") as log:
        env = os.environ | {"PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(
            [*words, "spark-internal"], cwd=folder, env=env, stdout=log, stderr=log
        )
    try:
        _await(process, port, folder / "log")
        yield ConnectServer(f"sc://127.0.0.1:{port}", folder / "warehouse")
    finally:
        process.terminate()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    from tests.helpers.spark_data import wait_for

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for("the Connect server's port", listens)
