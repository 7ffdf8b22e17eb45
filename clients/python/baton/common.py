"""What the clients of the agent and of servers have in common."""
import contextlib
import math
import time
from typing import Any, Iterator, NamedTuple, Optional


def now() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # goes on while the machine is suspended


def milliseconds(name: str, seconds: Optional[float]) -> Optional[int]:
    """None, and infinity, are no bound."""
    if seconds is not None and not seconds >= 0:  # nor is it NaN
        raise Error("bad", f"{name} is {seconds}: it must be a number of seconds, 0 or more")
    return None if seconds in (None, math.inf) else min(math.ceil(seconds * 1000), 31_622_400_000)  # a year


class Error(Exception):
    """The agent refused the request, or cannot be reached. args: a code such as busy, a message."""

    answer: dict[str, Any] = {}
    result: Optional[str] = None  # of once: what the work returned, if that could not be recorded

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


@contextlib.contextmanager
def keeping(result: str) -> Iterator[None]:
    """An error of what is done meanwhile has the result of the work."""
    try:
        yield
    except Error as e:
        e.result = result
        raise


class Held(Error):
    """Another process has the lock, and the wait is over."""


class Lost(Error):
    """The session has ended, and all its locks: another process may have them."""


class Failed(Error):
    """The operation of once has failed for good. Raise it in the work to record that: baton.Failed("the card was refused")."""

    def __init__(self, *why: str) -> None:
        super().__init__("failed", why[-1] if why else "")


class Block:
    def unlock(self) -> None:
        raise NotImplementedError

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.unlock()
        except Error:
            if kind is None:  # else the error of the work is the one that counts
                raise


class Taken(NamedTuple):
    """What a limit has decided, true if ok. Times are seconds. If it is not ok, nothing was taken."""

    ok: bool
    limit: int
    remaining: int
    reset: float  # until all that was taken has come back
    wait: float  # wait so long before you act
    retry: Optional[float]  # when the same cost will be allowed: 0 if ok, None for never
    reservation: str = ""  # for settle of baton.http

    def __bool__(self) -> bool:
        return self.ok

    @classmethod
    def of(cls, ok: bool, answer: dict[str, Any]) -> "Taken":
        limit, remaining, *ms = (int(answer.get(name, 0)) for name in ("limit", "remaining", "reset_ms", "wait_ms", "retry_ms"))
        return cls(ok, limit, remaining, ms[0] / 1000, ms[1] / 1000, 0 if ok else ms[2] / 1000 or None, answer.get("reservation", ""))


class Leader(NamedTuple):
    value: str
    token: int  # 0 if the store does not tell
