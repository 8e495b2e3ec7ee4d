"""What may be shown of an address or of a library's words: never a password.

An address is shown as far as it can be read with certainty; if a password could be anywhere in it,
with whatever unescaped characters, only its scheme is left. User names, options after "?" and what
comes after "#" are hidden in any case.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from ..errors import SpecError

HIDDEN = "***"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_CONTAINERS = {"abfs", "abfss", "az", "wasb", "wasbs"}  # what is before the @ is no user
_FILES = {"s3", "s3a", "s3n", "gs", "gcs", "adl", "oss", "cos", "obs", "dbfs", "memory", "file"}
_FILES |= {"hdfs", "webhdfs", "viewfs"} | _CONTAINERS  # an @ may well be part of a folder's name
_PORTS = _FILES | {"http", "https", "tcp"}  # "postgresql://u:1234" may be a user and a password
_HOST = r"[A-Za-z0-9._~$-]*"
_AUTHORITY = re.compile(rf"{_HOST}(?=[/?#]|\Z)")
_WITH_PORT = re.compile(rf"{_HOST}(?::[0-9]+)?(?=[/?#]|\Z)")
_CONTAINER = re.compile(r"[A-Za-z0-9$_-]*@")
# What is no URL, and still may hold a password: jdbc:..., "host=h password=p", user:password@host.
_DATABASES = r"jdbc|odbc|postgres|postgresql|mysql|mariadb|mssql|sqlserver|oracle|mongodb|redis"
_DATABASE = re.compile(rf"({_DATABASES})(\+\w+)?:", re.IGNORECASE)
_DRIVER = re.compile(rf"({_DATABASES}|https?|s?ftp|s3a?|gs|abfss?)(\+\w+)?:", re.IGNORECASE)
_NAME = (  # bounded, for the words of a library may be long
    r"((?:\bsig|(?:password|passwd|pwd|secret|token|signature|credential|api_?key|access_?key)"
    r"\w{0,30})['\"]?\s{0,3}[=:]\s{0,3})"
)
_NAMED = re.compile(_NAME, re.IGNORECASE)
_VALUE = re.compile(rf"{_NAME}(?!YES\b|NO\b)('[^']*'|\"[^\"]*\"|\S+)", re.IGNORECASE)
_INSIDE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s'\"<>|`\])}]+")


def address(text: str) -> str:
    """An address, or a path, as it may stand in a message."""
    found = _SCHEME.match(text)
    if found is None:
        driver = _DRIVER.match(text)
        return text if not may_hide_password(text) else f"{driver[0] if driver else ''}{HIDDEN}"
    scheme, rest = found[1].lower(), text[found.end() :]
    inside = _CONTAINER.match(rest) if scheme in _CONTAINERS else None
    begin = inside.end() if inside else 0
    authority = (_WITH_PORT if scheme in _PORTS else _AUTHORITY).match(rest, begin)
    if authority is None:
        return f"{found[0]}{HIDDEN}"
    path = re.split(r"[?#]", rest[authority.end() :], maxsplit=1)[0]
    end = authority.end() + len(path)
    # A slash, "?" or "#" may have been part of the password, and the host come later.
    unsure = "@" in path and (scheme not in _FILES or ":" in authority[0])
    if "@" in rest[end:] or unsure or (scheme not in _PORTS and ":" in path):
        return f"{found[0]}{HIDDEN}"
    return found[0] + rest[:end] + (f"{rest[end]}{HIDDEN}" if end < len(rest) else "")


def may_hide_password(text: str) -> bool:
    """Whether something that is not scheme://... looks as if it had a password in it."""
    if "://" in text:
        return True
    if text.startswith(("/", "./", "../", "~")):
        return False  # a path, whatever its folders are called
    return bool(_DRIVER.match(text) or _NAMED.search(text) or re.search(r":.*@", text, re.DOTALL))


def check_path(text: str) -> None:
    """Refuse, without showing it, what is given for a local path and looks like an address."""
    if "\0" in text:
        raise SpecError("a path has a zero byte in it, which no file system allows; leave it out")
    if may_hide_password(text) and not os.path.lexists(text):
        raise SpecError(
            f"{address(text)} is neither a path nor an address that can be opened; a database is "
            "postgresql://user@host:port/database or mysql://..., and a path that looks like an "
            "address begins with ./"
        )


def check_address(url: str) -> None:
    """Refuse an address of files with credentials in it: the address of a master is shown, and
    stored in pins, so what has been opened must be free of them."""
    found = _SCHEME.match(url)
    if found is None or _DATABASE.match(url):
        raise SpecError(
            f"{address(url)} is no address that can be opened; a database is "
            "postgresql://user@host:port/database or mysql://..., files are s3://bucket/path or "
            "the like"
        )
    what = "options after a '?'" if "?" in url else None
    if address(url) == f"{found[0]}{HIDDEN}":
        what = "an @ or a : as between user, password and host"
    if what is not None:
        raise SpecError(
            f"{address(url)} has {what} in it, and addresses of masters are shown and stored; give "
            "credentials with storage_options=..., or by the environment"
        )


def scrub(text: object, secrets: Iterable[str] = ()) -> str:
    """Words of a library, without some secrets in any spelling, and without what may be one in the
    addresses and settings that it quotes."""
    shown = str(text)
    forms = {form for secret in secrets if secret for form in _spellings(secret)}
    for form in sorted(forms, key=len, reverse=True):
        shown = shown.replace(form, HIDDEN)
    shown = _INSIDE.sub(lambda found: address(found[0]), shown)
    return _VALUE.sub(rf"\1{HIDDEN}", shown)


def _spellings(secret: str) -> set[str]:
    safe = secret.encode("utf-8", "replace")
    escaped = {repr(secret)[1:-1], json.dumps(secret)[1:-1], repr(safe)[2:-1]}
    return {secret, quote(safe, safe=""), quote(safe), quote_plus(safe)} | escaped
