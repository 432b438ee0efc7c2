"""The kernels that are supported, and the tests that one of them is let off.

This is the list; docs/kernels.md shows it, and a test holds the two together.
"""

from typing import NamedTuple


class Kernel(NamedTuple):
    """A kernel of the distribution, and the archive that has its package.

    `security`: it is in the archive of security updates. `moving`: it changes from week
    to week, so where it can't be had that is said and not a failure. `refuses`: rungs
    of the hook ladder that it is known not to have.
    """

    name: str
    suite: str
    package: str
    security: bool = True
    moving: bool = False
    refuses: tuple[str, ...] = ()


SUPPORTED = (
    # links to perf events, which outlive their maker, came with 5.15
    Kernel(
        "5.10",
        "bullseye-security",
        "linux-image-cloud-amd64",
        refuses=("kprobe", "tracepoint"),
    ),
    Kernel("6.1", "bookworm-security", "linux-image-cloud-amd64"),
    Kernel("6.12", "bookworm-security", "linux-image-6.12-cloud-amd64"),
    Kernel("newest", "sid", "linux-image-cloud-amd64", security=False, moving=True),
)
NAMES = tuple(kernel.name for kernel in SUPPORTED)


class Exclusion(NamedTuple):
    """A test that is not run in some guests. An empty tuple means all of them."""

    test: str
    reason: str
    kernels: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    def covers(self, kernel: str, variant: str) -> bool:
        """Whether a guest is let off."""
        return (not self.kernels or kernel in self.kernels) and (
            not self.variants or variant in self.variants
        )


# What is the same on any kernel and slow under emulation runs on one of them, and on
# the machine that runs the lab.
_BUT_ONE = ("5.10", "6.12", "newest")

EXCLUDED = (
    Exclusion(
        "tests/kernel/test_argv.py::"
        "test_two_thousand_short_programs_all_have_their_argv",
        "20 s for what the loss counters show on any kernel",
        _BUT_ONE,
    ),
)
