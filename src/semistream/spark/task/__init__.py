"""What runs in Spark's Python workers: an iterator of batches in, one out. Knows no pyspark."""

from .counters import ADDED, APP, PHASES, ROOT, Counting, Report
from .enrich import EnrichTask, Share, Step, in_words, task_bytes
from .hot_keys import scratch_folder
from .open import SHARED, writing_to
from .partition import CELLS, Spread
from .versions import BATCH, OWNER, QUERY, Batch, PinFolder, Pins, owner_named
from .write import RESULT, CodeTask, ShardTask, part_of

__all__ = [
    "ADDED",
    "APP",
    "BATCH",
    "CELLS",
    "OWNER",
    "PHASES",
    "QUERY",
    "RESULT",
    "ROOT",
    "SHARED",
    "Batch",
    "CodeTask",
    "Counting",
    "EnrichTask",
    "PinFolder",
    "Pins",
    "Report",
    "ShardTask",
    "Share",
    "Spread",
    "Step",
    "in_words",
    "owner_named",
    "part_of",
    "scratch_folder",
    "task_bytes",
    "writing_to",
]
