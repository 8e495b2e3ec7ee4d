"""Join a fast stream with a master table far larger than memory.

stream batches ──> front stage (hot master rows in memory) ──hit──────────────┐
                        │ miss                                                ├──> joined batches
                        v                                                     │
                   waiting rows (queue + key index) ──> disk phase ──match────┘
                                                          │
                             master table: pages <────────┘
"""

from .errors import (
    BudgetError,
    ConflictError,
    DamagedError,
    DatabaseError,
    DuplicateKeyError,
    InstallError,
    KeyTypeError,
    MachineError,
    MasterError,
    OverrunError,
    SemiStreamError,
    ShedError,
    SpecError,
    SpillError,
    StateError,
    StoreError,
)
from .join import Band, Compare, Predicate, SemiStreamJoin, join_batches
from .join.shed import Shedding, ShedReceiver
from .master import Store, open_master
from .spec import ALGORITHMS, Params, Workload

__version__ = "0.1.0"
__all__ = [
    "ALGORITHMS",
    "Band",
    "BudgetError",
    "Compare",
    "ConflictError",
    "DamagedError",
    "DatabaseError",
    "DuplicateKeyError",
    "InstallError",
    "KeyTypeError",
    "MachineError",
    "MasterError",
    "OverrunError",
    "Params",
    "Predicate",
    "SemiStreamError",
    "SemiStreamJoin",
    "ShedError",
    "ShedReceiver",
    "Shedding",
    "SpecError",
    "SpillError",
    "StateError",
    "Store",
    "StoreError",
    "Workload",
    "join_batches",
    "open_master",
]
