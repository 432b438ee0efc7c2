"""The stream: every event once and whole, and every missing number accounted for."""

import msgspec
import pytest

from agent.events import Event, Exec, Exit, Flag, Loss
from agent.sensor import wire
from agent.sensor.ringbuf import Batch
from agent.sensor.stream import MAX_PENDING, Position, Stream, read_cpu_states
from agent.sensor.tap import decode_checkpoint
from tests.builders import (
    NOW,
    SECOND,
    a_batch,
    a_fork,
    a_task,
    an_exec,
    an_exit,
    counters,
    encode,
    encode_piece,
    in_pieces,
    plain,
)

LONG = bytes(range(1, 256)) * 100
WHOLE = an_exec(b"echo", LONG, seq=1)
PIECES = in_pieces(WHOLE, first=4096, chunk=8192)
LATER = NOW + 60 * SECOND


def a_stream(
    positions: dict[int, Position] | None = None, started_ns: int = 0
) -> Stream:
    return Stream(positions or {}, started_ns, lambda: LATER)


def exits(*numbers: int, cpu: int = 0) -> list[bytes]:
    """Records with these numbers, each a nanosecond after the one before."""
    return [encode(an_exit(cpu=cpu, seq=n, bt_ns=NOW + n)) for n in numbers]


def numbers(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.cpu, event.seq) for event in events]


def resumed(stream: Stream) -> Stream:
    """The stream of the next run, after its positions went through a record."""
    raw = msgspec.json.encode({str(c): at for c, at in stream.checkpoint().items()})
    return a_stream(decode_checkpoint(msgspec.json.decode(raw)))


def only_exec(events: list[Event]) -> Exec:
    (event,) = events
    assert isinstance(event, Exec)
    return event


def test_events_come_out_in_the_order_of_the_ring() -> None:
    records = [*exits(1), *exits(1, 2, cpu=1), *exits(2)]
    events = a_stream().feed(a_batch(*records))
    assert numbers(events) == [(0, 1), (1, 1), (1, 2), (0, 2)]


def test_a_long_argv_is_joined_and_says_how_many_numbers_it_took() -> None:
    event = only_exec(a_stream().feed(a_batch(*PIECES)))
    assert plain(event) == plain(msgspec.structs.replace(WHOLE, parts=len(PIECES)))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_long_argv_is_joined_across_batches(size: int) -> None:
    stream, events = a_stream(), []
    for at in range(0, len(PIECES), size):
        events += stream.feed(a_batch(*PIECES[at : at + size]))
    assert only_exec(events).argv == WHOLE.argv


def test_long_argvs_of_two_cpus_do_not_mix() -> None:
    other = an_exec(b"other", LONG[::-1], task=a_task(7), cpu=1, seq=1)
    between = in_pieces(other, first=4096, chunk=8192)
    mixed = [one for pair in zip(PIECES, between, strict=True) for one in pair]
    events = a_stream().feed(a_batch(*mixed))
    assert [event.argv for event in events] == [WHOLE.argv, other.argv]


def test_others_do_not_wait_for_a_long_argv() -> None:
    stream = a_stream()
    assert stream.feed(a_batch(PIECES[0])) == []
    assert numbers(stream.feed(a_batch(*exits(1, cpu=1)))) == [(1, 1)]


def test_a_lost_piece_in_the_middle_cuts_argv_before_it() -> None:
    stream = a_stream()
    event = only_exec(stream.feed(a_batch(PIECES[0], *PIECES[2:])))
    assert event.flags == Flag.ARGV_CUT
    assert event.argv == WHOLE.argv[:4096]
    assert event.argv_bytes == len(WHOLE.argv)
    (loss,) = stream.reconcile(counters({"argv": 1}), drained=True)
    assert loss.kinds == {"argv": 1}


def test_a_lost_last_piece_is_known_when_the_next_event_comes() -> None:
    after = encode(an_exit(seq=WHOLE.seq + len(PIECES)))
    cut, following = a_stream().feed(a_batch(*PIECES[:-1], after))
    assert isinstance(cut, Exec)
    assert cut.flags == Flag.ARGV_CUT
    assert WHOLE.argv.startswith(cut.argv)
    assert isinstance(following, Exit)


def test_an_argv_that_stops_arriving_is_given_out_after_a_while() -> None:
    stream = a_stream()
    stream.feed(a_batch(*PIECES[:-1]))
    assert stream.expire(NOW) == []
    event = only_exec(stream.expire(NOW + 1))
    assert event.flags == Flag.ARGV_CUT
    assert stream.expire(NOW + 1) == []


def test_a_piece_that_could_not_be_read_cuts_argv_before_it() -> None:
    faulty = encode_piece(WHOLE, 2, 4096, b"stale", flags=int(Flag.ARGV_FAULT))
    after = encode(an_exit(seq=1 + len(PIECES)))
    events = a_stream().feed(a_batch(PIECES[0], faulty, *PIECES[2:], after))
    event = only_exec(events[:1])
    assert event.argv == WHOLE.argv[:4096]
    assert event.flags & Flag.ARGV_CUT


def test_a_piece_of_another_process_is_never_joined() -> None:
    stranger = an_exec(b"x", LONG, task=a_task(666))
    piece = encode_piece(stranger, 2, 4096, b"s" * 100)
    after = encode(an_exit(seq=3))
    event = a_stream().feed(a_batch(PIECES[0], piece, after))[0]
    assert isinstance(event, Exec)
    assert event.argv == WHOLE.argv[:4096]
    assert event.flags & Flag.ARGV_CUT


def test_a_piece_without_its_exec_is_no_event() -> None:
    stream = a_stream({0: Position(seq=1)})
    assert stream.feed(a_batch(*PIECES[1:])) == []
    assert not stream.gap


def test_an_argv_without_end_does_not_take_all_memory() -> None:
    claimed = MAX_PENDING * 3
    endless = an_exec(b"x", argv_bytes=claimed, seq=1)
    stream, chunk, at = a_stream(), b"y" * 65536, len(endless.argv)
    stream.feed(a_batch(encode(endless)))
    for number in range(2, MAX_PENDING * 2 // len(chunk)):
        assert stream.feed(a_batch(encode_piece(endless, number, at, chunk))) == []
        at += len(chunk)
    event = only_exec(stream.expire(LATER))
    assert MAX_PENDING <= len(event.argv) < MAX_PENDING + len(chunk)
    assert event.flags & Flag.ARGV_CUT


def test_a_gap_counted_by_the_kernel_is_a_loss_with_its_kinds_and_time() -> None:
    stream = a_stream()
    stream.feed(a_batch(*exits(1, 2)))
    stream.feed(a_batch(*exits(6)))
    assert stream.gap
    states = counters({"exec": 2, "fork": 1}, last_lost_ns=NOW + 5)
    lost = Loss("ring full", {"exec": 2, "fork": 1}, NOW + 2, NOW + 5, (0,))
    assert stream.reconcile(states, drained=True) == [lost]
    assert not stream.gap
    assert stream.reconcile(states, drained=True) == []


def test_a_gap_that_nobody_counted_is_a_loss_of_unknown_cause() -> None:
    stream = a_stream()
    stream.feed(a_batch(*exits(1, 5)))
    lost = Loss("unknown", {"unknown": 3}, NOW + 1, NOW + 5, (0,))
    assert stream.reconcile(counters({}), drained=True) == [lost]


def test_what_the_kernel_counted_is_taken_off_an_unknown_loss() -> None:
    stream = a_stream()
    stream.feed(a_batch(*exits(1, 5)))
    full, odd = stream.reconcile(counters({"exit": 2}), drained=True)
    assert (full.kinds, odd.kinds) == ({"exit": 2}, {"unknown": 1})
    assert (full.cause, odd.cause) == ("ring full", "unknown")


def test_a_loss_after_which_nothing_came_is_told_without_a_gap() -> None:
    stream = a_stream()
    stream.feed(a_batch(*exits(1)))
    (loss,) = stream.reconcile(counters({"exec": 4}), drained=True)
    assert (loss.count, loss.start_ns) == (4, NOW + 1)
    stream.feed(a_batch(*exits(6)))
    assert stream.reconcile(counters({"exec": 4}), drained=True) == []


def test_losses_of_several_cpus_are_one_loss_that_names_them() -> None:
    stream = a_stream()
    stream.feed(a_batch(*exits(1, 3), *exits(1, 4, cpu=2)))
    states = counters({"exec": 1}, {}, {"exec": 1, "fork": 1}, last_lost_ns=NOW + 3)
    (loss,) = stream.reconcile(states, drained=True)
    assert (loss.kinds, loss.cpus) == ({"exec": 2, "fork": 1}, (0, 2))


def test_an_unknown_loss_lies_in_its_time_also_when_it_was_hidden_at_first() -> None:
    """Losses that lie ahead in the ring may be counted before their gap is seen."""
    stream = a_stream()
    stream.feed(a_batch(*exits(1, 3)))  # 2 is missing, and nobody counted it
    ahead = counters({"exit": 3}, last_lost_ns=NOW + 6)  # 4, 5 and 6, not yet reached
    stream.reconcile(ahead, drained=False)
    stream.feed(a_batch(*exits(7)))
    (loss,) = stream.reconcile(ahead, drained=True)
    assert loss.kinds == {"unknown": 1}
    assert loss.start_ns <= NOW + 2 <= loss.end_ns


def test_bytes_that_are_no_event_are_counted_and_leave_a_gap() -> None:
    stream = a_stream()
    events = stream.feed(a_batch(*exits(1), b"\xff" * 60, *exits(3)))
    assert numbers(events) == [(0, 1), (0, 3)]
    assert stream.undecodable == 1
    (loss,) = stream.reconcile(counters({}), drained=True)
    assert loss.kinds == {"unknown": 1}


def test_what_was_given_out_is_not_given_out_again_after_a_crash() -> None:
    first = a_stream()
    first.feed(a_batch(*exits(1, 2), *exits(1, cpu=1)))
    second = resumed(first)
    events = second.feed(a_batch(*exits(1, 2), *exits(1, cpu=1), *exits(3)))
    assert numbers(events) == [(0, 3)]
    assert second.replayed == 3
    assert not second.gap


def test_a_loss_is_not_told_again_after_a_crash() -> None:
    first = a_stream()
    first.feed(a_batch(*exits(1, 4)))
    states = counters({"exec": 2})
    assert first.reconcile(states, drained=True)
    second = resumed(first)
    second.feed(a_batch(*exits(1, 4, 5)))
    assert second.reconcile(states, drained=True) == []


def test_a_loss_while_nobody_read_is_told_by_the_next_run() -> None:
    first = a_stream()
    first.feed(a_batch(*exits(1)))
    second = resumed(first)
    second.feed(a_batch(*exits(4)))
    (loss,) = second.reconcile(counters({"exit": 2}), drained=True)
    assert (loss.count, loss.start_ns) == (2, NOW + 1)


def test_a_checkpoint_does_not_skip_an_exec_whose_argv_is_arriving() -> None:
    first = a_stream()
    first.feed(a_batch(*PIECES[:2]))
    assert first.checkpoint()[0].seq == WHOLE.seq - 1
    event = only_exec(resumed(first).feed(a_batch(*PIECES)))
    assert event.argv == WHOLE.argv


def test_the_ring_keeps_an_exec_whose_argv_is_arriving() -> None:
    before = exits(1)
    exec_ = an_exec(b"echo", LONG, seq=2)
    records = in_pieces(exec_, first=4096, chunk=8192)
    stream = a_stream()
    batch = a_batch(*before, *records[:2], start=4096)
    stream.feed(batch)
    assert stream.committable(batch.end) == a_batch(*before, start=4096).end
    rest: Batch = a_batch(*records[2:], start=batch.end)
    stream.feed(rest)
    assert stream.committable(rest.end) == rest.end


def test_a_loss_is_not_told_again_because_an_argv_was_arriving() -> None:
    first = a_stream()
    exec_ = an_exec(b"echo", LONG, seq=4)
    first.feed(a_batch(*exits(1), in_pieces(exec_, 4096, 8192)[0]))
    states = counters({"exec": 2})
    assert first.reconcile(states, drained=True)
    second = resumed(first)
    second.feed(a_batch(*in_pieces(exec_, 4096, 8192)))
    assert second.reconcile(states, drained=True) == []


def test_what_happened_before_the_start_is_backlog() -> None:
    records = [*exits(1, 2, 3), *PIECES]
    stream = a_stream({0: Position(seq=0), 1: Position(seq=0)}, started_ns=NOW + 2)
    events = stream.feed(a_batch(*records[:3]))
    assert [event.backlog for event in events] == [True, False, False]


def test_a_backlog_exec_in_pieces_is_backlog() -> None:
    event = only_exec(a_stream(started_ns=NOW + 1).feed(a_batch(*PIECES)))
    assert event.backlog
    assert event.argv == WHOLE.argv


def test_another_reader_s_past_is_its_own_to_tell() -> None:
    stream = a_stream()
    lost = {"exec": 9}
    stream.begin_in_the_middle({0: lost, 1: {}})
    events = stream.feed(a_batch(*exits(1000, 1001), *exits(5, cpu=1)))
    assert numbers(events) == [(0, 1000), (0, 1001), (1, 5)]
    assert not stream.gap
    assert stream.reconcile(counters(lost, {}), drained=True) == []


def test_what_a_replaced_ring_had_is_left_out() -> None:
    stream = a_stream(started_ns=NOW + 1)
    stream.begin_at(NOW)
    (before, after) = exits(1), exits(2)
    events = stream.feed(a_batch(*before, *after))
    late = [event for event in events if event.bt_ns < NOW]
    assert late == []
    assert not stream.gap


def test_after_the_middle_a_loss_is_a_loss() -> None:
    stream = a_stream()
    stream.begin_in_the_middle({0: {"exec": 9}})
    stream.feed(a_batch(*exits(1000, 1003)))
    (loss,) = stream.reconcile(counters({"exec": 11}), drained=True)
    assert loss.kinds == {"exec": 2}


def test_the_first_event_of_a_cpu_must_be_its_first_number() -> None:
    stream = a_stream()
    stream.feed(a_batch(encode(a_fork(seq=3, cpu=5))))
    (loss,) = stream.reconcile(counters(*[{}] * 6), drained=True)
    assert (loss.count, loss.cpus) == (2, (5,))


def test_the_kernel_s_counters_are_read_for_every_possible_cpu() -> None:
    lost = [0] * 16
    lost[wire.Kind.EXEC], lost[wire.Kind.ARGV] = 3, 1
    raw = wire.CPU_STATE.pack(50, *lost, NOW) + wire.CPU_STATE.pack(*[0] * 18)
    first, second = read_cpu_states(raw)
    assert (first.seq, first.lost) == (50, {"exec": 3, "argv": 1})
    assert first.last_lost_ns == NOW
    assert (second.seq, second.lost) == (0, {})
