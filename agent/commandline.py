"""What the two command lines share: a parser whose errors have our exit code.

In: an argument list. Out: options, or a usage line and exit code 64 as in sysexits.h,
where argparse itself would end with 2, which here means that something failed.
"""

import argparse
import sys
from typing import NoReturn

from agent.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that ends with UsageError's exit code."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, and exit with 64."""
        self.print_usage(sys.stderr)
        self.exit(UsageError.exit_code, f"{self.prog}: {message}\n")
