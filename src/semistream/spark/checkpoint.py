"""Whose micro-batch it is, where two queries have one id: a copied checkpoint brings its id along.

Spark keeps the id of a query in its checkpoint. So does this: a note in the checkpoint says where
it lies and under which name its pins and marks are kept, which is the query's id. A query that
starts from another place than its note says was moved, or is a copy: it is a copy if the checkpoint
at the old place still has the id, and then it goes on under a name of its own.

    CHECKPOINT/semistream.json    {"location": CHECKPOINT, "owner": ID or ID-copy-...}

Tasks learn the name from a property that Spark hands on from the thread of the query. Over Spark
Connect none of this can be known, and the id has to do.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from typing import Any, ClassVar
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession

from ..safety import address, scrub
from .task import OWNER, owner_named

LOG = logging.getLogger("semistream.spark")
NOTE, SPARKS = "semistream.json", "metadata"  # our file in a checkpoint, and Spark's with the id
_TOLD: WeakSet[SparkSession] = WeakSet()


def owner_of(session: SparkSession, query: str) -> str:
    """The name under which a running query keeps pins and marks: on the driver, in its thread."""
    known = owner_named(session.sparkContext.getLocalProperty(OWNER), query)
    return _settle(session, query) if known is None else known


def _settle(session: SparkSession, query: str) -> str:
    """Find out, and let all that the query's thread does from now on know."""
    try:
        owner = _noted(session, query)
    except Exception as error:  # of any file system, or a Spark that has changed inside
        LOG.warning(
            "whether the checkpoint of query %s is a copy cannot be found out (%s); if it is one, "
            "give it another id: in its file %r",
            query,
            _shown(error),
            SPARKS,
        )
        owner = query
    # With the query, since threads have heirs.
    session.sparkContext.setLocalProperty(OWNER, f"{query} {owner}")
    return owner


def tell_tasks(df: DataFrame) -> None:
    """Let the tasks of queries to come of this session know their owner."""
    session = df.sparkSession
    if session in _TOLD:
        return
    _TOLD.add(session)
    try:
        _listen(session)
    except Exception as error:  # a Spark that has changed inside
        LOG.warning("copied checkpoints will not be noticed: %s", _shown(error))


def _listen(session: SparkSession) -> None:
    from pyspark.java_gateway import ensure_callback_server_started  # late: clients have no Java

    ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = session._jvm
    wrapper = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
    session._jsparkSession.streams().addListener(wrapper(_Started(session)))


class _Started:
    """A listener that Spark calls in the thread of a query, before its first micro-batch. PySpark's
    own class would make Python objects of every report of progress: a tenth of a second each."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def onQueryStarted(self, event: Any) -> None:
        _settle(self._session, event.id().toString())

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


def _noted(session: SparkSession, query: str) -> str:
    """The owner, and a note of it in the checkpoint."""
    jvm: Any = session._jvm
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    found = running.get(jvm.java.util.UUID.fromString(query))
    if found is None:
        return query
    here = _Folder(session, found.resolvedCheckpointRoot())
    note = here.json(NOTE)
    # The owner becomes the name of a folder.
    if re.fullmatch(rf"{re.escape(query)}(-copy-[0-9a-f]+)?", str(note.get("owner"))) is None:
        note = {"location": here.location, "owner": query}
    elif note.get("location") != here.location:
        if _is_copy(session, here, str(note.get("location")), query):
            note["owner"] = f"{query}-copy-{uuid.uuid4().hex[:12]}"
        note["location"] = here.location
    else:
        return str(note["owner"])
    here.write(NOTE, json.dumps(note).encode())
    return str(note["owner"])


def _is_copy(session: SparkSession, here: _Folder, before: str, query: str) -> bool:
    """Whether the place that the note names still has a checkpoint of this query."""
    try:
        there = _Folder(session, before)
        copied = there.json(SPARKS).get("id") == query and not here.is_also(there)
    except Exception as error:  # of any file system
        copied, where = False, address(before)
        LOG.warning("%s cannot be read (%s): %s was moved, then", where, _shown(error), here)
    if copied:
        LOG.warning(
            "the checkpoint %s is a copy of %s: a query of its own from now on", here, there
        )
    return copied


def _shown(error: Exception) -> str:
    return scrub(error).partition("\n")[0]


class _Folder:
    """A checkpoint, wherever Spark can keep one."""

    def __init__(self, session: SparkSession, location: str) -> None:
        self.location = location
        self._path: Any = session._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
        conf = session._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(location).getFileSystem(conf)

    def __str__(self) -> str:
        return address(self.location)

    def _at(self, name: str) -> Any:
        return self._path(self.location, name)

    def json(self, name: str) -> dict[str, Any]:
        """What a file says; nothing where it is absent or no JSON."""
        if not self._files.exists(self._at(name)):
            return {}
        stream = self._files.open(self._at(name))
        try:
            found = json.loads(bytes(stream.readAllBytes()))
        except ValueError:
            return {}
        finally:
            stream.close()
        return found if isinstance(found, dict) else {}

    def write(self, name: str, content: bytes) -> None:
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(content)
        finally:
            stream.close()

    def is_also(self, other: _Folder) -> bool:
        """Whether both are one folder under two names, as with links and mounts."""
        probe = f".semistream-{uuid.uuid4().hex}"
        self.write(probe, b"")
        try:
            return bool(other._files.exists(other._at(probe)))
        finally:
            self._files.delete(self._at(probe), False)
