"""A declarative pipeline whose table is an enriched stream: the project is in pipeline/.

    .venv/bin/python examples/pipeline.py

Copies the project into a temporary folder, makes data there and runs it as `spark-pipelines run`
would. The tables are folders in spark-warehouse, where the server was started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
from shop import make_products, make_sales

from semistream import Store

PROJECT = Path(__file__).with_name("pipeline")


def prepare(folder: Path) -> None:
    """The project with data, and its checkpoints in the same folder."""
    shutil.copytree(PROJECT, folder, dirs_exist_ok=True)
    spec = folder / "spark-pipeline.yml"
    storage = "file:///tmp/semistream-pipeline/storage"
    spec.write_text(spec.read_text().replace(storage, (folder / "storage").as_uri()))
    (folder / "data").mkdir()
    make_sales(folder / "data")
    products = pq.read_table(make_products(folder / "data"))
    Store.create(folder / "data" / "store", products, key="product_id").close()


def run(folder: Path, remote: str = "local[2]") -> None:
    command = [sys.executable, "-m", "pyspark.pipelines.cli", "run"]
    subprocess.run(command, cwd=folder, env=os.environ | {"SPARK_REMOTE": remote}, check=True)


def show(warehouse: Path) -> None:
    enriched = pq.read_table(warehouse / "enriched_sales").sort_by("sale_id")
    unknown = pq.read_table(warehouse / "unknown_products")
    print(f"{enriched.num_rows} sales have their product, the first three:")
    for row in enriched.slice(0, 3).to_pylist():
        print(f"  {row['quantity']} of {row['name']} at {row['price']}")
    print(f"{unknown.num_rows} products are unknown")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        prepare(Path(name))
        run(Path(name))
        show(Path(name) / "spark-warehouse")
