"""What the two command lines share: a parser with our exit code, and a progress bar.

In: an argument list. Out: options, or a usage line and exit code 64 as in sysexits.h,
where argparse itself would end with 2, which here means that something failed.
"""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from agent.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that ends with UsageError's exit code."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, and exit with 64."""
        self.print_usage(sys.stderr)
        self.exit(UsageError.exit_code, f"{self.prog}: {message}\n")


_BAR = 40


def progress(what: str) -> Callable[[int, int], None]:
    """Return a function that shows how far something is, where a person looks on."""

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            filled = "#" * (_BAR * done // max(total, 1))
            end = "\n" if done >= total else ""
            sys.stderr.write(f"\r[{filled:<{_BAR}}] {done:,} of {total:,} {what}{end}")
            sys.stderr.flush()

    return tell
