"""Tasks as they travel to executors.

A task is pickled by reference: a worker that lacks the package could not even read it, and the user
would see a traceback of unpickling. So it travels as bytes inside a function that is pickled by
value, uses nothing but the standard library until it knows that the package is there, and says what
is missing where. It also keeps our own errors short: their message is all there is to know.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle

from .. import __version__
from ..errors import SpecError

_NAME = __package__.partition(".")[0]
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same package gives the same bytes

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def shipped(task: Task) -> Task:
    """The same task, for `mapInArrow` on executors that may lack the package."""
    content: bytes = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    version = __version__

    # A function inside a function goes by value, and so does all that it names from outside: two
    # variables. Everything else is imported within it.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import pickle
        import platform
        import sys

        def refusal(problem: str) -> Exception:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the message says it all; see below
            kind = type("InstallError", (Exception,), {"__module__": "semistream.errors"})
            error: Exception = kind(problem)
            return error

        here = f"the executors' Python {sys.executable} on {platform.node()}"
        whole = "an environment with spark.archives"
        zipped = (
            "the package (`semistream package semistream.zip`, then --py-files semistream.zip or "
            "SparkContext.addPyFile)"
        )
        docs = 'See "Installing on executors" in docs/spark.md.'
        try:
            import semistream
        except ModuleNotFoundError as error:
            if error.name == "semistream":
                raise refusal(
                    f"semistream is not installed in {here}. Install it there (pip install "
                    f"semistream=={version}), or ship {zipped} or {whole}. {docs}"
                ) from None
            raise refusal(
                f"{error.name}, which semistream needs, is not installed in {here}. Install it "
                f"there (pip install {error.name}), or ship {whole}. {docs}"
            ) from None
        except ImportError as error:
            raise refusal(
                f"semistream cannot be imported in {here}: {error}. Mend that, or ship {whole}. "
                f"{docs}"
            ) from None
        if semistream.__version__ != version:
            raise refusal(
                f"semistream is {semistream.__version__} in {here} ({semistream.__file__}) and "
                f"{version} on the driver, and both must be the same. Install it there (pip "
                f"install semistream=={version}), or ship {zipped} or {whole}. {docs}"
            )
        try:
            yield from pickle.loads(content)(batches)
        except semistream.SemiStreamError:
            # PySpark reads this in the process of the worker, which ends with the error.
            if not os.environ.get("SEMISTREAM_TRACEBACK"):
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    run.__name__ = getattr(task, "__name__", type(task).__name__)  # as Spark's plans show it
    return run


# --- the package as a zip file, for executors that do not have it ------------------------------


def package(path: str | os.PathLike[str]) -> Path:
    """Write semistream itself to a new zip file, for `--py-files` or `SparkContext.addPyFile`.

    What it needs (pyarrow, numpy, numba, google-crc32c) is compiled code, which Python cannot
    import from a zip: that must be installed where the file goes.
    """
    target = Path(path)
    if target.suffix != ".zip":
        raise SpecError(f"{target} must end with .zip: Python imports from no other name")
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, source in sorted(_sources(files(_NAME), _NAME)):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), source, zipfile.ZIP_DEFLATED)
    except FileExistsError:
        raise SpecError(f"{target} exists already; delete it or choose another name") from None
    except OSError as error:
        raise SpecError(f"{target} cannot be written: {error.strerror}") from error
    return target


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".typed")):
            yield f"{name}/{entry.name}", entry.read_bytes()
