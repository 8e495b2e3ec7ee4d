"""The package as a zip file, and its compiled kernels wherever the zip lies."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import semistream as ss
from semistream.cli import main
from semistream.spark.ship import package

PACKAGE = Path(ss.__file__).parent

# Without site packages' .pth files: what is installed for editing is not found.
USES_A_KERNEL = """
import sys
sys.path[:0] = [sys.argv[1]]
sys.path += [sys.argv[2]]
import semistream
from semistream.kernels.base import same_bytes
assert same_bytes(0, 0, 0)
print(semistream.__file__, sum(same_bytes.stats.cache_hits.values()))
"""


def test_all_modules_are_in_it_and_nothing_else(tmp_path: Path) -> None:
    path = package(tmp_path / "semistream.zip")
    sources = [p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".typed")]
    expected = sorted(p.relative_to(PACKAGE.parent).as_posix() for p in sources)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == expected
        for name in expected:
            assert archive.read(name) == (PACKAGE.parent / name).read_bytes()
    assert package(tmp_path / "again.zip").read_bytes() == path.read_bytes()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "semistream.zip"
    assert main(["package", str(path)]) == 0
    assert "--py-files" in capsys.readouterr().out
    assert main(["package", str(path)]) == 1
    assert "exists already; delete it" in capsys.readouterr().err
    assert main(["package", str(tmp_path / "semistream.tar")]) == 1
    assert "must end with .zip" in capsys.readouterr().err
    assert main(["package", str(tmp_path / "nowhere" / "semistream.zip")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_kernels_are_compiled_once_for_all_places_of_the_package(tmp_path: Path) -> None:
    """Spark puts a zip into another folder for each application. What was damaged since is
    compiled anew."""
    import numba

    site = str(Path(numba.__file__).parents[1])
    cache = tmp_path / "cache"
    seen = []
    for name in ("one", "other", "damaged"):
        if name == "damaged":
            for kept in cache.rglob("*same_bytes*.kernel"):
                kept.write_bytes(kept.read_bytes()[:-100] + bytes(100))
        folder = tmp_path / name
        folder.mkdir()
        path = package(folder / "semistream.zip")
        words = [sys.executable, "-I", "-S", "-c", USES_A_KERNEL, str(path), site]
        env = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        where, hits = done.stdout.split()
        assert where.startswith(str(path))
        seen.append(int(hits))
    assert seen == [0, 1, 0]
    assert len(list(cache.iterdir())) == 1
