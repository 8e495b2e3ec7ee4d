"""What Python workers need of an executor's memory, said when a query starts."""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame

from ..memory import parse_bytes, show_bytes

BESIDES = 150_000_000  # Python, pyarrow, compiled kernels, Arrow batches on their way
LOG = logging.getLogger("semistream.spark")
_SAID: set[str] = set()  # in foreachBatch, enrich is called again and again


def say_overhead(df: DataFrame, memory: int) -> None:
    """Log what `spark.executor.memoryOverhead` must be; as a warning where it is less."""
    conf = df.sparkSession.conf

    def setting(name: str, default: str) -> str:
        return conf.get(name, default) or default

    need = memory + BESIDES
    master = setting("spark.master", "local")
    if master == "local" or master.startswith("local["):
        _say(logging.INFO, f"each running task needs {show_bytes(need)} beside the driver's heap")
        return
    cores, per_task = setting("spark.executor.cores", "1"), setting("spark.task.cpus", "1")
    slots = max(1, int(cores) // int(per_task))
    has = _overhead(
        setting("spark.executor.memoryOverhead", ""),
        _bytes(setting("spark.executor.memory", "1g")),
        float(setting("spark.executor.memoryOverheadFactor", "0.1")),
    )
    level = logging.INFO if has >= slots * need else logging.WARNING
    _say(
        level,
        f"spark.executor.memoryOverhead is {show_bytes(has)}; Python workers need "
        f"{show_bytes(slots * need)} of it: {slots} tasks at a time, each {show_bytes(memory)} for "
        f"memory_per_task and {show_bytes(BESIDES)} besides",
    )


def _say(level: int, words: str) -> None:
    if words not in _SAID:
        _SAID.add(words)
        LOG.log(level, words)


def _overhead(given: str, heap: int, factor: float) -> int:
    """What Spark adds to the heap: as it was told, or a share of it."""
    return _bytes(given) if given else max(384 << 20, int(factor * heap))


def _bytes(given: str) -> int:
    return int(given) << 20 if given.isdigit() else parse_bytes(given)  # plain numbers are MiB
