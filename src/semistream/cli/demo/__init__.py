"""`semistream demo`: a live stream joined on local Spark, beside Spark's own join."""

from .demo import Options, Report, run
from .summary import as_data, as_text
from .view import make_view, quiet_view

__all__ = ["Options", "Report", "as_data", "as_text", "make_view", "quiet_view", "run"]
