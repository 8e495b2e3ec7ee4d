"""Folders and files that nobody else can change, and what is done where there are none."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import semistream as ss
from semistream.kernels import compile_cache
from semistream.safety import private
from semistream.safety.private import is_private, private_folder, read_private, write_private
from semistream.spark.task.hot_keys import scratch_folder
from tests.helpers.damage import outcomes

OWN = private.own_name()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder for all users, as /tmp is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def any_umask():
    before = os.umask(0)
    yield
    os.umask(before)


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_umask")
def test_a_folder_is_made_for_us_alone(shared: Path) -> None:
    found = private_folder(shared / "new", OWN, "hot")
    assert found == shared / "new" / OWN / "hot"
    assert {mode(found), mode(found.parent), mode(shared / "new")} == {0o700}
    assert private_folder(shared / "new", OWN, "hot", secret=True) == found, "and found again"
    assert is_private(shared, "new", OWN, "hot")


def test_the_base_may_be_a_link_and_is_resolved(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(shared)
    assert private_folder(tmp_path / "link", OWN) == shared / OWN


def prepared_open(at: Path) -> None:
    at.mkdir()
    at.chmod(0o777)


def prepared_for_a_group(at: Path) -> None:
    at.mkdir()
    at.chmod(0o770)


def prepared_sticky(at: Path) -> None:
    """Others could not rename what we put there, but put something there themselves."""
    at.mkdir()
    at.chmod(0o1777)


def prepared_link(at: Path) -> None:
    (at.parent / "elsewhere").mkdir(mode=0o700)
    at.symlink_to(at.parent / "elsewhere")


def prepared_dangling(at: Path) -> None:
    at.symlink_to(at.parent / "nowhere")


def prepared_file(at: Path) -> None:
    at.write_text("no folder")


PREPARED = [prepared_open, prepared_for_a_group, prepared_sticky, prepared_link]
PREPARED += [prepared_dangling, prepared_file]


@pytest.mark.parametrize("prepare", PREPARED)
@pytest.mark.parametrize("where", [(OWN,), (OWN, "hot")])
def test_what_others_have_prepared_is_refused_and_left_alone(shared, prepare, where) -> None:
    at = shared.joinpath(*where)
    if len(where) > 1:
        private_folder(shared, *where[:-1])
    prepare(at)
    before = mode(at)
    for secret in (False, True):
        with pytest.raises(PermissionError):
            private_folder(shared, *where, secret=secret)
    assert not is_private(shared, *where)
    assert mode(at) == before
    assert not at.is_dir() or not any(at.iterdir())


def test_a_folder_that_others_can_read_holds_no_secret(shared: Path) -> None:
    (shared / OWN).mkdir()
    (shared / OWN).chmod(0o755)
    assert private_folder(shared, OWN)
    with pytest.raises(PermissionError, match=r"not private: it belongs to user \d+ .* 0755"):
        private_folder(shared, OWN, secret=True)


def test_a_folder_of_someone_else(shared: Path, monkeypatch) -> None:
    private_folder(shared, "theirs")
    us = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: us)
    with pytest.raises(PermissionError, match="belongs to user"):
        private_folder(shared, "theirs")


def test_a_folder_that_can_be_renamed_is_not_private(shared: Path, monkeypatch) -> None:
    """Somebody who can write to a folder above puts another one in the place of ours."""
    ours = private_folder(shared, "a", "b", OWN)
    for above in (shared / "a", shared):
        before = mode(above)
        above.chmod(0o777)  # not sticky
        with pytest.raises(PermissionError, match=f"{above.name} is not private.*0777"):
            private_folder(ours)
        assert not is_private(ours)
        monkeypatch.setenv(private.SINGLE_USER, "1")
        assert private_folder(ours) == ours, "there is nobody"
        monkeypatch.delenv(private.SINGLE_USER)
        above.chmod(before)
    assert is_private(ours)


def test_a_folder_that_appears_at_the_last_moment(shared: Path, monkeypatch) -> None:
    make = os.mkdir

    def too_late(path: Path, mode: int = 0o777) -> None:
        make(path)
        os.chmod(path, 0o777)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr("os.mkdir", too_late)
    with pytest.raises(PermissionError, match="0777"):
        private_folder(shared, OWN)


def test_homes_that_are_none(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert private.cache_home() == tmp_path / ".cache"
    for home in ("/proc/none", "relative", str(tmp_path / "missing")):
        monkeypatch.setenv("HOME", home)
        assert private.cache_home() is None
    monkeypatch.setenv("HOME", "/proc")
    with pytest.raises(OSError, match=r"\.cache"):
        private_folder(private.cache_home(), OWN)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # no entry, as in many containers
    assert private.cache_home() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert private.cache_home() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x" / "y"))
    assert private_folder(private.cache_home(), OWN) == tmp_path / "x" / "y" / OWN


def test_a_scratch_folder_says_whose_it_is(shared: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    assert scratch_folder("pins") == shared / OWN / "pins"
    (shared / OWN).chmod(0o777)
    with pytest.raises(ss.SpecError, match=f"{OWN} is not private.*0777; name a folder with pins="):
        scratch_folder("pins")
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    with pytest.raises(ss.SpecError, match=rf"/proc/{OWN}: .*; name a folder with pins="):
        scratch_folder("pins")


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_umask")
def test_a_file_is_written_for_us_alone_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_private(file, b"one")
    write_private(file, b"two", sync=True)
    assert read_private(file) == b"two"
    assert mode(file) == 0o600
    assert list(tmp_path.iterdir()) == [file], "no halves are left"


def test_a_link_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"theirs")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        read_private(link)
    write_private(link, b"ours")
    assert (read_private(link), (tmp_path / "target").read_bytes()) == (b"ours", b"theirs")


def test_a_file_that_others_could_have_written(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "file"
    write_private(file, b"ours")
    for bits in (0o620, 0o602):
        file.chmod(bits)
        with pytest.raises(PermissionError, match="not private"):
            read_private(file)
    file.chmod(0o644)
    assert read_private(file) == b"ours"
    us = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: us)
    with pytest.raises(PermissionError, match="not private"):
        read_private(file)


def test_a_pipe_does_not_make_us_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(PermissionError, match="no plain file"):
        read_private(tmp_path / "pipe")


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    write_private(tmp_path / "file", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(tmp_path / "file", b"new", sync=True)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"old")]


# --- compiled code --------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, shared: Path, monkeypatch) -> dict[str, Path]:
    """NUMBA_CACHE_DIR, a home and a folder for temporary files, of which none is private yet."""
    made = {"asked": tmp_path / "asked", "home": tmp_path / "home", "temporary": shared}
    for name in ("asked", "home"):
        made[name].mkdir()
        made[name].chmod(0o777)
    shared.chmod(0o777)
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(made["asked"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(made["home"]))
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    return made


def look() -> Path | None:
    return compile_cache.code_folder.__wrapped__()


@pytest.mark.parametrize(
    ("safe", "chosen"),
    [
        (["asked", "home", "temporary"], "asked"),
        (["home", "temporary"], "home"),
        (["temporary"], "temporary"),
        ([], None),
    ],
)
def test_compiled_code_goes_to_the_first_private_folder(places, safe, chosen, caplog) -> None:
    for name in safe:
        places[name].chmod(0o1777 if name == "temporary" else 0o755)
    found = look()
    assert (found and found.parent) == (places[chosen] / OWN if chosen else None)
    said = [record.getMessage() for record in caplog.records]
    assert any("NUMBA_CACHE_DIR" in s and "is not used" in s for s in said) == (chosen != "asked")
    assert any("every process compiles anew" in s for s in said) == (chosen is None)
    for name in places.keys() - {chosen}:
        assert list(places[name].iterdir()) == []


def test_no_folder_at_all_is_no_reason_to_fail(monkeypatch, caplog) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", "")
    monkeypatch.setattr(compile_cache, "cache_home", lambda: None)
    monkeypatch.setattr(compile_cache, "temporary_home", lambda: None)
    assert look() is None
    assert "there is no folder for caches or temporary files; set NUMBA_CACHE_DIR" in caplog.text


VICTIM = """
from semistream.kernels.base import same_bytes
assert same_bytes(0, 0, 0)
"""


@pytest.mark.parametrize("where", ["", "kernels"])
def test_a_folder_that_was_prepared_for_a_victim_stays_empty(shared: Path, where: str) -> None:
    """A service without a home that can be written: whoever makes the folder first would have
    our pickles in their hands, and we theirs."""
    at = shared / OWN / where
    at.mkdir(parents=True)
    for each in (at, shared / OWN):
        each.chmod(0o777)
    env = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    env |= {"HOME": "/proc/none", "TMPDIR": str(shared)}
    done = subprocess.run([sys.executable, "-c", VICTIM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(at.iterdir()) == []
    assert "compiled code is not kept" in done.stderr


def test_damaged_code_is_compiled_anew(tmp_path: Path) -> None:
    """Flipped bits in machine code must not run."""
    kept = compile_cache._Files(tmp_path, "kernel")
    kept.save("key", {"code": b"\x90\xc3"})
    (file,) = tmp_path.iterdir()

    def use(raw: bytes) -> object:
        file.write_bytes(raw)
        found = kept.load("key")
        if found is None:
            raise ss.DamagedError("a miss")
        return found

    assert kept.load("another key") is None
    assert set(outcomes(file.read_bytes(), use)) == {"DamagedError"}


def test_code_that_cannot_be_kept_is_still_there(tmp_path: Path) -> None:
    nowhere = compile_cache._Files(tmp_path / "gone", "kernel")
    nowhere.save("key", 1)
    assert nowhere.load("key") is None
