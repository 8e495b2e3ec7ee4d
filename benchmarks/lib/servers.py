"""Private database servers for tests and benchmarks: own folder, own port, loopback only.

Each is a child process, stopped by its own process id. Nothing that runs on the machine already is
asked, used or stopped. What they hold survives the end of a server, not that of the machine.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path

PASSWORD = "canary-9f27c1"  # tests look for it where it must not be
STARTS_WITHIN = 60.0


class ServerError(RuntimeError):
    """A private server did not start."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(*names: str) -> str:
    """The path of the first of some programs that is there."""
    places = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/usr/local/bin"
    newest = sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)
    for name in names:
        found = shutil.which(name, path=":".join([*newest, places]))
        if found:
            return found
    raise ServerError(f"none of {names} is installed; scripts/ensure_servers.sh gets them")


class Server:
    """Start, stop, kill, start again; the data stays until `remove`."""

    kind: str
    scheme: str
    user: str
    database: str
    accounts: tuple[str, ...]  # that it may run as where we are root

    def __init__(self, memory_mb: int = 128) -> None:
        self.port, self.memory_mb = free_port(), memory_mb
        self.folder = Path(tempfile.mkdtemp(prefix=f"semistream-{self.kind}-"))
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)  # should nobody get that far
        self._account = self._other_account()
        if self._account:
            shutil.chown(self.folder, self._account)
        self.folder.chmod(0o700)
        self._log = open(self.folder / "log.txt", "ab")  # noqa: SIM115 - as long as the server
        self._prepare()
        self.start()

    def _other_account(self) -> str | None:
        """PostgreSQL refuses to run as root, and MariaDB warns."""
        if os.geteuid() != 0:
            return None
        known = {entry.pw_name for entry in pwd.getpwall()}
        return next(name for name in (*self.accounts, "nobody") if name in known)

    def url(self, port: int | None = None, password: str | None = PASSWORD, more: str = "") -> str:
        secret = "" if password is None else f":{password}"
        at = f"127.0.0.1:{port or self.port}"
        return f"{self.scheme}://{self.user}{secret}@{at}/{self.database}{more}"

    def _prepare(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it takes connections."""
        raise NotImplementedError

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._account
        return subprocess.Popen(
            command, cwd=self.folder, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
            user=account, group=pwd.getpwnam(account).pw_gid if account else None,
            extra_groups=[] if account else None, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip

    def _run(self, command: list[str]) -> None:
        if self._spawn(command).wait(timeout=120):
            raise ServerError(f"{command[0]} failed: {self.log()}")

    def log(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")[-2000:]

    def start(self) -> None:
        self._process = self._spawn(self._command())
        end = time.monotonic() + STARTS_WITHIN
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise ServerError(f"{self.kind} did not start: {self.log()}")
            time.sleep(0.05)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=60)
            self._process = None

    def stop(self) -> None:
        """At once, but in order: connections are ended."""
        self._signal(signal.SIGINT if self.kind == "postgresql" else signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGQUIT if self.kind == "postgresql" else signal.SIGKILL)

    def remove(self) -> None:
        atexit.unregister(self.remove)
        self.stop()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class PostgreSQL(Server):
    kind = scheme = "postgresql"
    user, database = "tester", "tests"
    accounts = ("postgres",)

    def _prepare(self) -> None:
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        if self._account:
            shutil.chown(secret, self._account)
        self._run(
            [program("initdb"), "-D", str(self.folder / "data"), "-U", self.user, "-E", "UTF8",
             "--locale=C", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        )  # fmt: skip
        secret.unlink()

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1", "port": str(self.port), "fsync": "off",
            "unix_socket_directories": "", "full_page_writes": "off",
            "max_wal_size": "4GB", "shared_buffers": f"{self.memory_mb}MB", "max_connections": "60",
        }  # fmt: skip
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [program("postgres"), "-D", str(self.folder / "data"), *flags]

    def answers(self) -> bool:
        import psycopg

        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        with self.connect("postgres") as admin:
            found = admin.execute("SELECT 1 FROM pg_database WHERE datname = 'tests'").fetchone()
            if found is None:
                admin.execute("CREATE DATABASE tests")
        return True

    def connect(self, database: str | None = None) -> psycopg.Connection:  # noqa: F821
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=PASSWORD,
            dbname=database or self.database, autocommit=True,
        )  # fmt: skip


class MariaDB(Server):
    kind, scheme = "mariadb", "mysql"
    user, database = "tester", "tests"
    accounts = ("mysql",)

    def _prepare(self) -> None:
        install = program("mariadb-install-db", "mysql_install_db")
        self._run(
            [install, "--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db",
             "--auth-root-authentication-method=normal", "--innodb-log-file-size=8M"]
        )  # fmt: skip
        (self.folder / "first.sql").write_text(
            f"CREATE DATABASE IF NOT EXISTS tests CHARACTER SET utf8mb4;"
            f"CREATE USER IF NOT EXISTS tester@'%' IDENTIFIED BY '{PASSWORD}';"
            "GRANT ALL ON *.* TO tester@'%' WITH GRANT OPTION;".replace(";", ";\n")
        )
        (self.folder / "first.sql").chmod(0o644)

    def _command(self) -> list[str]:
        return [
            program("mariadbd", "mysqld"), "--no-defaults", f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}", f"--port={self.port}", "--bind-address=127.0.0.1",
            "--skip-log-bin", "--innodb-flush-log-at-trx-commit=2", "--skip-name-resolve",
            f"--innodb-buffer-pool-size={self.memory_mb}M",
            f"--init-file={self.folder / 'first.sql'}",
            "--local-infile=1", "--max-connections=60", "--innodb-doublewrite=0",
            f"--pid-file={self.folder / 'pid'}", "--innodb-flush-method=nosync",
        ]  # fmt: skip

    def answers(self) -> bool:
        import pymysql

        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def connect(self, database: str | None = None) -> pymysql.Connection:  # noqa: F821
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=self.user, password=PASSWORD,
            database=database or self.database, autocommit=True, local_infile=True,
            charset="utf8mb4",
        )  # fmt: skip


START: dict[str, Callable[[], Server]] = {"postgresql": PostgreSQL, "mariadb": MariaDB}
