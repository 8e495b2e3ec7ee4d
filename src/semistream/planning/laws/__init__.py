"""The cost model: what a join costs, as formulas on plain numbers.

    zipf         sums over a skewed stream in closed form; the others are made of them
    renewal      rows per read of hybridjoin's family
    ssij         pages that ssij reads
    sweeps       sweepjoin, all at once and in parts
    family       disk work per stream row, for every algorithm
    published    the papers' equations, one function each, and corrected ones beside

Nothing here reads a file or knows Arrow. docs/model.md joins the papers' symbols to words, and says
how far each law is off.
"""

from . import ssij, zipf
from .family import disk_work, has_law, require_law
from .setting import DiskWork, Setting
from .sweeps import rounds, swept

__all__ = [
    "DiskWork",
    "Setting",
    "disk_work",
    "has_law",
    "require_law",
    "rounds",
    "ssij",
    "swept",
    "zipf",
]
