"""What the clients of the agent and of servers have in common."""
import math
import time
from typing import Any, NamedTuple, Optional


def now() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # goes on while the machine is suspended


def milliseconds(name: str, seconds: Optional[float]) -> Optional[int]:
    """None, and infinity, are no bound."""
    if seconds is not None and not seconds >= 0:  # nor is it NaN
        raise Error("bad", f"{name} is {seconds}: it is a number of seconds, not below 0")
    return None if seconds in (None, math.inf) else min(math.ceil(seconds * 1000), 31_622_400_000)  # a year


class Error(Exception):
    """The agent refused the request, or cannot be reached. args: a code such as busy, a message."""

    answer: dict[str, Any] = {}

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


class Held(Error):
    """Another process has the lock, and the wait is over."""


class Lost(Error):
    """The session has ended, and all its locks: another process may have them."""


class Failed(Error):
    """The operation of once has failed for good. Raise it in the work to record that: baton.Failed("the card was refused")."""

    def __init__(self, *why: str) -> None:
        super().__init__("failed", why[-1] if why else "")


class Taken(NamedTuple):
    """What a limit has decided, true if ok. Times are seconds. If it is not ok, nothing was taken."""

    ok: bool
    limit: int
    remaining: int
    reset: float  # until all that was taken has come back
    wait: float  # wait so long before you act
    retry: Optional[float]  # when the same cost will be allowed: 0 if ok, None for never

    def __bool__(self) -> bool:
        return self.ok

    @classmethod
    def of(cls, ok: bool, answer: dict[str, Any]) -> "Taken":
        limit, remaining, *ms = (int(answer.get(name, 0)) for name in ("limit", "remaining", "reset_ms", "wait_ms", "retry_ms"))
        return cls(ok, limit, remaining, ms[0] / 1000, ms[1] / 1000, 0 if ok else ms[2] / 1000 or None)


class Leader(NamedTuple):
    value: str
    token: int  # 0 if the store does not tell
