"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .errors import MLXSparseError


class _Writer:
    """A binary file that libraries can only reach through its methods.

    NumPy writes to a file's descriptor where there is one, past the errors of a full disk; and what some
    libraries raise instead of an OSError does not say what happened: `error` does.
    """

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self._stream.write(content)
        except OSError as error:
            self.error = error
            raise

    def fileno(self) -> int:
        raise io.UnsupportedOperation("write to this file by write()")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def check_target(path: str | os.PathLike[str], kind: type[MLXSparseError]) -> None:
    """An error of `kind` where `path` can be no file: a device, a pipe, or a name that the system refuses."""
    try:
        mode = os.stat(path).st_mode  # through links, /dev/stdout too
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise kind(f"cannot write {os.fspath(path)!r}: {error}") from error
    # A folder has the error of the system, where it is to be replaced.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise kind(
            f"cannot write {os.fspath(path)!r}: it is a device or a pipe, and a file would take its place; "
            "name a file"
        )


def _temporary(target: Path) -> Path:
    """A new name beside `target`; of a long name only the start, for names end at 255 bytes."""
    name, end = target.name, f".{secrets.token_hex(4)}.tmp"
    while len(os.fsencode(name)) > 254 - len(end):
        name = name[:-1]  # by characters: half of one is no name everywhere
    return target.with_name(f".{name}{end}")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], kind: type[MLXSparseError]) -> Iterator[BinaryIO]:
    """Binary file whose content appears at `path` whole when the block ends, or not at all if it raises.

    The bytes go to a temporary file in the same directory, which is flushed to disk and then renamed. A file
    that is replaced leaves its permissions.
    An OSError becomes an error of `kind` that names `path`.
    """
    check_target(path, kind)
    # A link keeps pointing where it did: its target is replaced.
    target = Path(os.path.realpath(path))
    temporary = _temporary(target)
    writer: Any = None
    try:
        with open(temporary, "xb+") as stream:
            with contextlib.suppress(OSError):  # before a byte of what others may not read is in it
                os.chmod(temporary, os.stat(target).st_mode & 0o777)
            writer = _Writer(stream)
            yield writer
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except Exception as error:
        reason = error if isinstance(error, OSError) else writer.error if writer else None
        if reason is None:
            raise
        raise kind(f"cannot write {os.fspath(path)!r}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
