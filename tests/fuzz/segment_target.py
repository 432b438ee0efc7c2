"""One fuzz input for the log: any bytes as the file of its only segment.

By hand, for hours, with coverage guidance (`pip install atheris` first; the corpus
folder is any folder with a few segment files in it):

    python -m tests.fuzz.segment_target CORPUS_FOLDER -max_len=4096
"""

import contextlib
import sys
import tempfile
from pathlib import Path

from agent.errors import CorruptError
from agent.sinks.chain import segment_name
from agent.sinks.scan import Follower, read
from agent.sinks.segment import SegmentWriter
from agent.sinks.verify import Report, verify

NAME = segment_name(0)
MARK = b'{"mark":1}'


def one_input(data: bytes) -> None:
    """Read, follow, recover and verify; fails if any of it breaks its promise."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / NAME).write_bytes(data)
        _read_gives_lines_or_corrupt_error(folder / NAME, data)
        before = verify(folder)
        with contextlib.suppress(CorruptError):  # a header may claim a wild sequence
            _append_mark(folder)
            _nothing_is_lost(folder, data)
            _only_the_mark_is_new(before, verify(folder))
        _following_ends(folder)


def _read_gives_lines_or_corrupt_error(path: Path, data: bytes) -> None:
    with contextlib.suppress(CorruptError):
        for line in read(path):
            assert data[line.offset :].startswith(line.body[:-1] + b',"_c":"')


def _append_mark(folder: Path) -> None:
    with SegmentWriter.open(folder, dict) as log:
        expected = log.next_sequence
        log.append([MARK])
    assert verify(folder).ends_at == expected


def _nothing_is_lost(folder: Path, data: bytes) -> None:
    path = folder / NAME
    left = path.read_bytes() if path.exists() else b""
    evidence = verify(folder).evidence
    if not evidence:
        assert left.startswith(data)
        return
    (name,) = evidence
    offset = int(name.rpartition("-")[2])
    assert (folder / name).read_bytes() == data[offset:]
    assert left[:offset] == data[:offset]


def _only_the_mark_is_new(before: Report, after: Report) -> None:
    new_header = after.segments - before.segments if before.records else 1
    assert after.records == before.records + new_header + 1
    assert not after.torn
    assert bool(after.faults) == bool(before.faults)


def _following_ends(folder: Path) -> None:
    follower = Follower(folder)
    for _ in range(1000):
        try:
            list(follower.poll())
        except CorruptError:
            continue
        return
    raise AssertionError("the follower tells of faults without end")


def main() -> None:
    """Run `one_input` under atheris until it fails or is interrupted."""
    import atheris  # noqa: PLC0415 - the tests run without it

    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
