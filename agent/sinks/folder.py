"""The folder of a log on disk: one writer at a time, and nothing in it thrown away.

Comes in: the path of a folder, and names of files in it.
Goes out: descriptors of these files, and names of evidence files.
Never: two writers, a file opened through a link, or evidence overwritten.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from agent.errors import BusyError
from agent.sinks.chain import LOCK_NAME, evidence_name


def write(fd: int, data: bytes) -> None:
    """Write all of `data` or raise OSError, which a short write only announces."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Folder:
    """A log's directory, locked for one writer; names are relative to it.

    Every method raises OSError where the file system refuses.
    """

    def __init__(self, path: Path) -> None:
        """Create `path` (0700) if it is missing, and lock it, or raise BusyError."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_directory(path.parent)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock = self._take_lock()
        except BaseException:
            os.close(self._fd)
            raise

    def _take_lock(self) -> int:
        lock = self.open(LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            message = f"{self.path}: another writer holds this log (pid {pid})"
            raise BusyError(message) from None
        with contextlib.suppress(OSError):  # a full disk; the pid is only a courtesy
            os.ftruncate(lock, 0)
            os.write(lock, b"%d\n" % os.getpid())
        return lock

    def open(self, name: str, flags: int) -> int:
        """Open a file, never through a link; a new one gets mode 0600."""
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o600, dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Make what was created, renamed and removed here durable."""
        os.fsync(self._fd)

    def set_aside(self, name: str, offset: int) -> str:
        """Move what `name` holds from `offset` on to a new file, and return its name.

        The copy is durable before the cut. If the process dies between the two, the
        next recovery makes a second copy.
        """
        evidence = self._free_name(name, offset)
        if offset == 0:
            here = self._fd
            os.rename(name, evidence, src_dir_fd=here, dst_dir_fd=here)
        else:
            self._copy_tail(name, offset, evidence)
            with os.fdopen(self.open(name, os.O_RDWR), "rb+") as file:
                file.truncate(offset)
                os.fsync(file.fileno())
        self.sync()
        return evidence

    def _free_name(self, name: str, offset: int) -> str:
        taken, again = {path.name for path in self.path.iterdir()}, 0
        while (free := evidence_name(name, offset, again)) in taken:
            again += 1
        return free

    def _copy_tail(self, name: str, offset: int, evidence: str) -> None:
        fd = self.open(evidence, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
                file.seek(offset)
                while piece := file.read(1 << 20):
                    write(fd, piece)
            os.fsync(fd)
            self.sync()
        except BaseException:
            self.remove(evidence)  # a part of the tail would pass for all of it
            raise
        finally:
            os.close(fd)

    def close(self) -> None:
        """Give the lock free, and take back the pid that it names."""
        os.ftruncate(self._lock, 0)
        os.close(self._lock)
        os.close(self._fd)
