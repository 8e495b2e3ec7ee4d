"""Shared by all tests: one local Spark session, and how hard hypothesis tries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.helpers.connect_server import connect_server  # noqa: F401 - fixture
from tests.helpers.database_servers import mariadb, postgresql, proxy, server  # noqa: F401 - fixtures
from tests.helpers.paths import LOG_CONFIG, TESTS
from tests.helpers.s3_server import bucket, s3_endpoint  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "default",
    max_examples=50,
    deadline=None,  # the first example may compile a kernel
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that need Spark take longest, also where a process of their own has it. They come
    first, so that two processes end together."""
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    with_spark |= {item.path for item in items if TESTS / "spark" in item.path.parents}
    items.sort(key=lambda item: item.path not in with_spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A quiet local Spark: two slots, each task may fail three times (as on a cluster)."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    from pyspark.sql import SparkSession  # late: tests without Spark do not pay for it

    config = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_CONFIG}",
        "spark.local.dir": str(tmp_path_factory.mktemp("local")),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("tests").config(map=config)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
