"""`ir-check`: what a responder asks of a node; it only reads.

In: a command line and the folders of an agent. Out: records and verdicts on standard
output, and an exit code: 0 ok, 1 warning, 2 failed, 3 could not look. No command here
changes anything.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent.checks import hidden, parentage, probes, process
from agent.checks.finding import Finding, gravest
from agent.commandline import Parser, progress
from agent.config import Config
from agent.errors import AgentError, CorruptError, UsageError
from agent.sinks.scan import Follower
from agent.sinks.text import safe, sentence
from agent.sinks.verify import Report, verify

_DAMAGED, _UNKNOWN = 2, 3
_FOLLOW_S = 0.2
_COMMANDS = ("host", "process", "records", "verify")
_CHECKS = ("probes", "parentage", "hidden")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(
        _with_command(sys.argv[1:] if argv is None else argv)
    )
    try:
        code: int = options.command(options)
    except AgentError as error:
        print(f"ir-check: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"ir-check: {error}", file=sys.stderr)
        return _UNKNOWN
    except KeyboardInterrupt:
        return 0
    return code


def _with_command(argv: Sequence[str]) -> list[str]:
    """Put in `host` where no command is named: it is the one asked for most."""
    given = list(argv)
    if given and (given[0] in _COMMANDS or given[0] in ("-h", "--help")):
        return given
    return ["host", *given]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ir-check", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    host = commands.add_parser("host", help="spot-audit this node (the default)")
    host.set_defaults(command=_host)
    host.add_argument(
        "--only", type=_checks, default=_CHECKS, metavar="CHECK,…", help="these checks"
    )
    host.add_argument(
        "--deep",
        action="store_true",
        help="ask for every pid there may be, and watch the scheduler",
    )
    host.add_argument("--runtime", default=Config().runtime, help="the runtime folder")
    process = commands.add_parser("process", help="who is this, and is that true")
    process.set_defaults(command=_process)
    process.add_argument("who", metavar="PID|ENTITY", help="a pid, or an entity id")
    for one in (host, process):
        one.add_argument("--pins", default=Config().pins, help="the pins folder")
    records = commands.add_parser("records", help="show the records of this node")
    records.set_defaults(command=_records)
    records.add_argument("--follow", action="store_true", help="go on as they come")
    records.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="only records whose field has this value, as event.action=exec",
    )
    check = commands.add_parser("verify", help="verify the hash chain of the records")
    check.set_defaults(command=_verify)
    check.add_argument("directory", nargs="?", type=Path, help="default STATE/records")
    for one in (host, process, records, check):
        one.add_argument("--state", default=Config().state, help="the state folder")
        one.add_argument("--json", action="store_true", help="JSON output")
    return parser


def _checks(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in _CHECKS:
            known = ", ".join(_CHECKS)
            raise argparse.ArgumentTypeError(f"{name!r}: there is {known}")
    return names


def _host(options: argparse.Namespace) -> int:
    pins, state = Path(options.pins), Path(options.state)
    deep = progress("pids") if options.deep else None
    checks: dict[str, Callable[[], Finding]] = {
        "probes": lambda: probes.check(Path(options.runtime), pins),
        "parentage": lambda: parentage.check(pins, state),
        "hidden": lambda: hidden.check(pins, deep),
    }
    found = {name: _looked(name, checks[name]) for name in options.only}
    if options.json:
        documents = {name: one.document for name, one in found.items()}
        print(msgspec.json.encode(documents).decode(), flush=True)
    else:
        print("\n\n".join("\n".join(one.lines) for one in found.values()), flush=True)
    return gravest(one.exit_code for one in found.values())


def _looked(name: str, check: Callable[[], Finding]) -> Finding:
    """Run one check; one that can't look keeps no other from it."""
    try:
        return check()
    except (AgentError, OSError) as error:
        return Finding([f"{name}: {error}"], {"note": str(error)}, _UNKNOWN)


def _process(options: argparse.Namespace) -> int:
    found = process.check(options.who, Path(options.pins), Path(options.state))
    if options.json:
        print(msgspec.json.encode(found.document).decode(), flush=True)
    else:
        print("\n".join(found.lines), flush=True)
    return found.exit_code


def _records(options: argparse.Namespace) -> int:
    directory = Path(options.state) / "records"
    wanted = [_condition(text) for text in options.where]
    damage: list[str] = []
    for body in _bodies(directory, damage, follow=options.follow):
        record = msgspec.json.decode(body)
        if all(_matches(record, path, value) for path, value in wanted):
            print(body.decode() if options.json else _line(record), flush=True)
    return _DAMAGED if damage else 0


def _bodies(directory: Path, damage: list[str], *, follow: bool) -> Iterator[bytes]:
    """Yield every verified record; damage is told, noted and passed by."""
    if not directory.is_dir():
        raise UsageError(f"{directory}: there are no records here")
    log = Follower(directory)
    while True:
        try:
            for _sequence, body in log.poll():
                yield body
        except CorruptError as error:
            damage.append(str(error))
            print(f"ir-check: {error}", file=sys.stderr)
            continue
        if not follow:
            return
        time.sleep(_FOLLOW_S)


def _condition(text: str) -> tuple[list[str], str]:
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise UsageError(f"--where {text!r}: expected FIELD=VALUE")
    return field.split("."), value


def _matches(record: Any, path: list[str], value: str) -> bool:
    """Compare as text; a list matches by any of its elements."""
    for name in path:
        if not isinstance(record, dict) or name not in record:
            return False
        record = record[name]
    found = record if isinstance(record, list) else [record]
    return any(_as_text(one) == value for one in found)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _line(record: dict[str, Any]) -> str:
    """Return one line for a person; whatever was in argv, it is safe to print."""
    event, process = record.get("event", {}), record.get("process", {})
    if not event:
        return "-- new segment"
    moment = record["@timestamp"][:23]
    head = f"{event['sequence']:>8} {moment} {event['action']:<16}"
    if not process:
        return f"{head} {_as_text(record.get('ir', {}))}"
    user = process.get("user", {})  # an alert names no user
    who = f"{safe(user.get('name') or user.get('id', '-')):<8}"
    who += f" {safe(process['name'])}[{process['pid']}]"
    words = " ".join(safe(arg) for arg in process.get("args", []))
    failed = record.get("error", {}).get("code", "")
    by = record.get("ir", {}).get("access", {}).get("denied", "")
    denied = f"denied by {by}" if by else ""
    alert = _as_alert(record.get("ir", {}).get("discrepancy", {}))
    parts = (head, who, words, failed, denied, alert)
    return " ".join(part for part in parts if part)


def _as_alert(found: dict[str, Any]) -> str:
    return f"{found['kind'].upper()}: {sentence(found['reason'])}" if found else ""


def _verify(options: argparse.Namespace) -> int:
    report = verify(options.directory or Path(options.state) / "records")
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        print(_verdict(report))
    if report.faults:
        return _DAMAGED
    return _UNKNOWN if report.ends_at is None else 0


def _verdict(report: Report) -> str:
    lines = [str(fault) for fault in report.faults]
    lines += [f"set aside after a crash: {name}" for name in report.evidence]
    if report.torn:
        lines.append("the last line is unfinished: a writer is at work, or crashed")
    if report.ends_at is None:
        lines.append("there are no records")
    else:
        state = "DAMAGED" if report.faults else "intact"
        lines.append(
            f"{state}: records {report.starts_at} to {report.ends_at}"
            f" in {report.segments} segments, head {report.last_hash}"
        )
    return "\n".join(lines)
