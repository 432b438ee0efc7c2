"""One fuzz input for the decoder: any bytes as a record of the ring.

By hand, for hours, with coverage guidance (`pip install atheris` first; the corpus
folder is any folder with a few records in it):

    python -m tests.fuzz.decode_target CORPUS_FOLDER -max_len=8192
"""

import sys

from agent.errors import DecodeError
from agent.events import (
    Access,
    Exec,
    ExecFailed,
    Exit,
    Fork,
    Prctl,
    Reported,
    Task,
)
from agent.sensor.decode import ArgvPiece, decode

NOISE = b"\xa5" * 37
_KINDS = (Exec, ExecFailed, Fork, Exit, Access, Prctl)


def one_input(data: bytes) -> Reported | ArgvPiece | None:
    """Decode `data`; fails unless that gives an event of it, or a DecodeError."""
    found = _decoded(data, 0, len(data))
    moved = _decoded(NOISE + data + NOISE, len(NOISE), len(data))
    assert moved == found, "what lies around a record has changed it"
    assert _decoded(data, 0, len(data) + 1) is None, "read beyond its end"
    if found is None:
        return None
    if isinstance(found, ArgvPiece):
        assert len(found.argv) <= len(data)
        return found
    assert isinstance(found, _KINDS)
    _event_is_of(found, data)
    return found


def _decoded(data: bytes, at: int, size: int) -> Reported | ArgvPiece | None:
    try:
        return decode(data, at, size)
    except DecodeError:
        return None


def _event_is_of(event: Reported, data: bytes) -> None:
    """No more bytes than there are, and numbers as C has them."""
    assert (event.parts, event.backlog) == (1, False)
    assert 0 <= event.cpu < 1 << 32
    assert 0 <= event.seq < 1 << 64
    _task_is_of(event.task)
    pieces = [event.cwd]
    if isinstance(event, Exec):
        pieces += [event.argv, event.executable, event.invoked, event.interpreter]
        pieces += event.environment
    if isinstance(event, ExecFailed):
        pieces += [event.argv, event.path]
    if isinstance(event, Access):
        _task_is_of(event.target)
        pieces.append(event.path)
    # a path gets one more slash than it has names, and may have none
    assert sum(map(len, pieces)) <= len(data) + len(pieces)


def _task_is_of(task: Task) -> None:
    assert b"\0" not in task.image.comm
    assert len(task.image.comm) <= 16  # TASK_COMM_LEN


def main() -> None:
    """Run `one_input` under atheris until it fails or is interrupted."""
    import atheris  # noqa: PLC0415 - the tests run without it

    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
