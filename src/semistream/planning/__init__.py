"""Which algorithm, which knobs, how fast: numbers in, a Plan out. Never changes results."""

from .choose import Plan, cannot, plan
from .device import DEVICES, Device
from .laws import has_law
from .machine import DEFAULT_MACHINE, Machine, Points, ReadCost, this_machine
from .phases import Operation
from .predict import operations
from .sample import StreamSample
from .tune import least_memory_for, tune
from .work import KNOWS, Case, Work
from .workload import Seen, sketch_stream, workload_of

__all__ = [
    "DEFAULT_MACHINE",
    "DEVICES",
    "KNOWS",
    "Case",
    "Device",
    "Machine",
    "Operation",
    "Plan",
    "Points",
    "ReadCost",
    "Seen",
    "StreamSample",
    "Work",
    "cannot",
    "has_law",
    "least_memory_for",
    "operations",
    "plan",
    "sketch_stream",
    "this_machine",
    "tune",
    "workload_of",
]
