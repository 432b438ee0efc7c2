"""Every error the agent raises on purpose, and the exit code each gives a command.

AgentError (2)
├── UsageError (64)          the command line or the configuration is wrong
├── NotPermittedError (77)   this needs root, a capability, or a kernel that allows it
├── BusyError (2)            another instance holds the same state or pins
├── LoadError (2)            the probes could not be compiled, loaded or pinned
├── DecodeError (2)          bytes from the kernel that are not an event
├── CorruptError (2)         a segment that does not verify
├── RuleError (2)            a rule that can't be used; names file, line and reason
└── RulesError (2)           rules of which at least one can't be used
"""

from typing import ClassVar


class AgentError(Exception):
    """The root; `exit_code` is what a command returns when it ends with this error."""

    exit_code: ClassVar[int] = 2


class UsageError(AgentError):
    """The command line or the configuration asks for something that does not exist."""

    exit_code = 64


class NotPermittedError(AgentError):
    """The caller or this kernel may not do what was asked."""

    exit_code = 77


class BusyError(AgentError):
    """Another instance holds the same state folder or the same pins."""


class LoadError(AgentError):
    """Probes could not be compiled, loaded, attached or pinned; says which and why."""


class DecodeError(AgentError):
    """Bytes that claim to be an event and are not; the reason is the message."""


class CorruptError(AgentError):
    """A segment does not verify; says where and what was expected there."""


class RuleError(AgentError):
    """A rule or filter is refused, in this line of this file, for this reason."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        """Say it the way compilers do."""
        super().__init__(f"{file}:{line}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason


class RulesError(AgentError):
    """Rules are loaded all or not at all; `errors` says of each why not."""

    def __init__(self, errors: list[RuleError]) -> None:
        """Say all of it, an error a line."""
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)
