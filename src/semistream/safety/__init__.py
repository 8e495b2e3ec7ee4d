"""Files and texts that leave us: whole, sealed, private, and without secrets."""

from .private import (
    SINGLE_USER,
    cache_home,
    is_private,
    own_name,
    private_folder,
    read_private,
    temporary_home,
    why_not,
    write_private,
)
from .redact import HIDDEN, address, check_address, check_path, scrub
from .sealed import (
    HEAD_BYTES,
    TAIL_BYTES,
    Checked,
    SealError,
    check_tail,
    checksum,
    content_length,
    seal,
    split_sealed,
    unseal,
    write_sealed,
)
from .writes import UNREADABLE, NotWrittenError, not_written

__all__ = [
    "HEAD_BYTES",
    "HIDDEN",
    "SINGLE_USER",
    "TAIL_BYTES",
    "UNREADABLE",
    "Checked",
    "NotWrittenError",
    "SealError",
    "address",
    "cache_home",
    "check_address",
    "check_path",
    "check_tail",
    "checksum",
    "content_length",
    "is_private",
    "not_written",
    "own_name",
    "private_folder",
    "read_private",
    "scrub",
    "seal",
    "split_sealed",
    "temporary_home",
    "unseal",
    "why_not",
    "write_private",
    "write_sealed",
]
