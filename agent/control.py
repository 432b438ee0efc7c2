"""`ir-agent`: load, unload, status, run.

In: a command line. Out: what it says on standard output, and an exit code from
agent.errors. It parses, calls one function and prints; the work is done elsewhere.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from agent.checks.finding import Finding
from agent.commandline import Parser
from agent.config import Config, check, read_config
from agent.errors import AgentError, NotPermittedError

_FOLDERS = ("state", "runtime", "pins")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(argv)
    _log_to_stderr(as_json=options.json)
    try:
        config = _config(options)
        code: int = options.command(config, options)
    except AgentError as error:
        print(f"ir-agent: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return AgentError.exit_code
    except OSError as error:
        print(f"ir-agent: {error}", file=sys.stderr)
        return AgentError.exit_code
    return code


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: not a time above 0")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ir-agent", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("load", _load, "load and prove the probes, and leave them pinned"),
        ("unload", _unload, "remove every trace of the probes"),
        ("status", _status, "say what is loaded, and what each hook is worth"),
        ("run", _run, "run the agent until it is told to stop"),
    ):
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(command=command)
        _add_common(one)
        if name == "run":
            one.add_argument(
                "--for", dest="seconds", type=_seconds, help="stop after SECONDS"
            )
            one.add_argument("--show", action="store_true", help="show events live")
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="default /etc/ir-agent/agent.yaml")
    for folder in _FOLDERS:
        parser.add_argument(f"--{folder}", help=f"the {folder} folder")
    parser.add_argument("--ring-bytes", type=int, help="size of the ring buffer")
    parser.add_argument(
        "--forbid",
        dest="forbidden_rungs",
        type=lambda text: tuple(filter(None, text.split(","))),
        metavar="RUNG,…",
        help="do not take these rungs of the hook ladder",
    )
    parser.add_argument("--json", action="store_true", help="output as JSON")


def _config(options: argparse.Namespace) -> Config:
    """Let the command line win over the file."""
    config = read_config(options.config)
    given = {
        name: getattr(options, name)
        for name in (*_FOLDERS, "ring_bytes", "forbidden_rungs")
        if getattr(options, name) is not None
    }
    values = {**msgspec.structs.asdict(config), **given}
    return check(values, Path("command line"))


def _log_to_stderr(*, as_json: bool) -> None:
    lines: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer() if as_json else lines,
        ],
        logger_factory=_Stderr,
    )


class _Stderr:
    """A log that can't be written is no reason to stop recording."""

    def __init__(self, *_: object) -> None:
        pass

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError, AttributeError):
            print(message, file=sys.stderr, flush=True)

    info = warning = error = debug = critical = msg


def _require_root() -> None:
    if os.geteuid():
        raise NotPermittedError("loading and reading probes needs root")


def _load(config: Config, options: argparse.Namespace) -> int:
    _require_root()
    from agent.checks import probes  # noqa: PLC0415 - only some commands need it
    from agent.sensor import loader, pins, status  # noqa: PLC0415

    folder, runtime = Path(config.pins), Path(config.runtime)
    with pins.owned(folder):
        states = loader.load(
            folder, config.ring_bytes, config.cache, config.forbidden_rungs
        )
    status.save(runtime, states)
    return _show(probes.finding(states), as_json=options.json)


def _unload(config: Config, options: argparse.Namespace) -> int:
    _require_root()
    from agent.sensor import pins, status  # noqa: PLC0415

    folder = Path(config.pins)
    with pins.owned(folder):
        pins.unload(folder)
    status.forget(Path(config.runtime))
    print('{"unloaded":true}' if options.json else f"{config.pins} is gone")
    return 0


def _status(config: Config, options: argparse.Namespace) -> int:
    _require_root()
    from agent.checks import probes  # noqa: PLC0415

    found = probes.check(Path(config.runtime), Path(config.pins))
    return _show(found, as_json=options.json)


def _show(found: Finding, *, as_json: bool) -> int:
    document = msgspec.json.encode(found.document).decode()
    print(document if as_json else "\n".join(found.lines))
    return found.exit_code


def _run(config: Config, options: argparse.Namespace) -> int:
    _require_root()
    from agent.daemon import Daemon  # noqa: PLC0415
    from agent.node import host_facts  # noqa: PLC0415
    from agent.sinks.text import Users  # noqa: PLC0415
    from agent.view import LiveView  # noqa: PLC0415

    view = None
    if options.show:
        users = Users(host_facts().namespaces.get("user", 0))
        view = LiveView(users, colour=sys.stdout.isatty())
    Daemon(config, view).run(options.seconds)
    return 0
