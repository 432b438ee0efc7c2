"""Read and write a guest's memory through QEMU's stub for debuggers.

In: the unix socket of `qemu -gdb`. Out: bytes of the memory as the guest's kernel sees
it, by the remote protocol of gdb. The guest stands still from connect to detach.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 10.0
# QEMU may say at any moment that the guest has stopped, or has ended.
_UNASKED = (b"T", b"S", b"W", b"X")


class StubError(Exception):
    """The stub refused, or what it said can't be understood."""


def packet(body: bytes) -> bytes:
    """Frame a request or an answer: its sum follows it, modulo 256."""
    return b"$%s#%02x" % (body, sum(body) & 0xFF)


class Stub:
    """One debugger's connection."""

    def __init__(self, connection: socket.socket) -> None:
        """Speak over a connection that is closed by whoever made it."""
        self._connection = connection
        self._said = b""

    def ask(self, body: bytes) -> bytes:
        """Send a request and return the answer to it; StubError."""
        self._connection.sendall(packet(body))
        while (answer := self._answer()).startswith(_UNASKED):
            pass
        return answer

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes of memory from the address `at` on; StubError."""
        answer = self.ask(b"m%x,%x" % (at, size))
        if len(answer) != 2 * size:
            raise StubError(f"{size} bytes at {at:#x} can't be read: {answer.decode()}")
        return bytes.fromhex(answer.decode())

    def write(self, at: int, content: bytes) -> None:
        """Put bytes into memory from the address `at` on; StubError."""
        words = b"M%x,%x:%s" % (at, len(content), content.hex().encode())
        if (answer := self.ask(words)) != b"OK":
            raise StubError(f"nothing can be written at {at:#x}: {answer.decode()}")

    def _answer(self) -> bytes:
        # Before the packet there are pluses and minuses: received, or not well.
        self._until(b"$")
        body = self._until(b"#")[:-1]
        while len(self._said) < 2:
            self._more()
        told, self._said = self._said[:2], self._said[2:]
        if packet(body)[-2:] != told:
            raise StubError(f"{body!r} came with the sum {told!r}")
        self._connection.sendall(b"+")
        return body

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._said:
            self._more()
        before, mark, self._said = self._said.partition(mark)
        return before + mark

    def _more(self) -> None:
        received = self._connection.recv(4096)
        if not received:
            raise StubError("the stub is gone")
        self._said += received


@contextlib.contextmanager
def stopped(path: Path) -> Iterator[Stub]:
    """Have a guest stand still for as long as the block; OSError, StubError.

    A machine stops when a debugger connects, and goes on when it detaches.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        stub = Stub(connection)
        try:
            yield stub
        finally:
            stub.ask(b"D")
