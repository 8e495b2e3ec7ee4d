"""What Python workers need of an executor's memory, said when a query starts."""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame

from ..memory import parse_bytes, show_bytes

BESIDES = 150_000_000  # Python, pyarrow, compiled kernels, Arrow batches on their way
LOG = logging.getLogger("semistream.spark")


def say_overhead(df: DataFrame, memory: int) -> None:
    """Log what `spark.executor.memoryOverhead` must be; as a warning where it is less."""
    conf = df.sparkSession.conf

    def setting(name: str, default: str) -> str:
        return conf.get(name, default) or default

    need = memory + BESIDES
    if setting("spark.master", "local").startswith("local["):
        LOG.info("each running task needs %s beside the driver's heap", show_bytes(need))
        return
    cores, per_task = setting("spark.executor.cores", "1"), setting("spark.task.cpus", "1")
    slots = max(1, int(cores) // int(per_task))
    has = _overhead(
        setting("spark.executor.memoryOverhead", ""),
        parse_bytes(setting("spark.executor.memory", "1g")),
        float(setting("spark.executor.memoryOverheadFactor", "0.1")),
    )
    words = (
        "spark.executor.memoryOverhead is %s; Python workers need %s of it: %d tasks at a time, "
        "each %s for memory_per_task and %s besides"
    )
    values = (show_bytes(has), show_bytes(slots * need), slots)
    level = logging.INFO if has >= slots * need else logging.WARNING
    LOG.log(level, words, *values, show_bytes(memory), show_bytes(BESIDES))


def _overhead(given: str, heap: int, factor: float) -> int:
    """What Spark adds to the heap: as it was told (plain numbers are MiB), or a share of it."""
    if given.isdigit():
        return int(given) << 20
    return parse_bytes(given) if given else max(384 << 20, int(factor * heap))
