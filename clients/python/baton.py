"""Distributed locks through the agent of this host ("baton agent"):

    with baton.lock("invoice/42", wait=10) as lock:
        write(lock.token)            # what the lock protects refuses a lower token
        if lock.check() > 1: pay()   # the seconds that are left for a step that must not happen twice
"""
import contextlib
import json
import math
import os
import socket
import time
from typing import Any, Optional


class Error(Exception):
    """The agent refused the request, or cannot be reached. args: a code such as busy, a message."""


class Held(Error):
    """Another process has the lock, and the wait is over."""


class Lost(Error):
    """The session has ended, and all its locks: another process may have them."""


class Session:
    """A connection to the agent, for one thread. Its end is that of all its locks."""

    def __init__(self, path: Optional[str] = None) -> None:
        path = path or os.environ.get("BATON_AGENT", "/run/baton/agent.sock")
        self._pid, self._id, self._socket = os.getpid(), 0, socket.socket(socket.AF_UNIX)
        self._in = self._socket.makefile("rb")
        try:
            self._socket.connect(path)
            self._read()  # the greeting
        except (OSError, ValueError, LookupError, TypeError) as e:
            self.close()
            raise Error("agent", f"no agent at {path}: {e}") from e

    def ask(self, do: str, needs: Optional[str] = None, **fields: Any) -> dict[str, Any]:
        """Send a request of the protocol and return its answer, which must have the number that it needs."""
        if os.getpid() != self._pid:
            raise Error("bad", "the session is that of the process that forked: open another")
        self._id += 1
        line = json.dumps({"id": self._id, "do": do, **{k: v for k, v in fields.items() if v is not None}})
        try:
            with contextlib.suppress(BrokenPipeError):  # the agent has ended the session, and said why
                self._socket.sendall(line.encode() + b"\n")
            return self._read(self._id, needs)
        except BaseException as e:  # an interrupt, too: the answer would be taken for the next one
            isinstance(e, Error) or self.close()
            if isinstance(e, (OSError, ValueError, LookupError, TypeError)):
                raise Lost("lost", f"the agent has gone: {e}") from e
            raise

    def _read(self, asked: int = 0, needs: Optional[str] = None) -> dict[str, Any]:
        if not (line := self._in.readline()).endswith(b"\n"):
            raise ConnectionError("it has closed the connection")
        answer = json.loads(line)
        ok, about = answer["ok"], answer.get("id", 0)
        if ok is True and about == asked:
            needs is None or int(answer[needs])
            return answer
        if ok is not False or about not in (asked, 0):
            raise ConnectionError("it has answered what was not asked")
        about or self.close()  # without an id it is about the session, which has ended
        raise {"held": Held, "lost": Lost, "closing": Lost}.get(answer["error"], Error)(answer["error"], answer["message"])

    def close(self) -> None:
        for part in (self._in, self._socket):
            part.close()


class Lock:
    """A lock that is held. token is an int that rises with every lock of the key.
    wait, max_hold: seconds; a wait of 0 is none, of None as long as it takes. permits: n, of."""

    def __init__(self, session: Session, key: str, wait: Optional[float] = None, shared: bool = False,
                 permits: Optional[tuple[int, int]] = None, max_hold: Optional[float] = None, alone: bool = False) -> None:
        ms = [None if s is None else math.ceil(s * 1000) for s in (wait, max_hold)]
        mode, (n, of) = "permits" if permits else "shared" if shared else None, permits or (None, None)
        answer = session.ask("lock", "token", key=key, wait_ms=ms[0], max_hold_ms=ms[1], mode=mode, n=n, of=of)
        self.key, self.token, self.session = key, int(answer["token"]), session
        self._id, self._alone, self._held = session._id, alone, True

    def check(self) -> float:
        """The seconds for which the lock is certain from now, even if the agent stops. Raises Lost."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine is suspended
        until = time.clock_gettime(clock) + int(self.session.ask("check", "remaining_ms", lock=self._id)["remaining_ms"]) / 1000
        return until - time.clock_gettime(clock)

    def unlock(self) -> None:
        """Unlock. Raises Lost if the lock had ended before. A second call does nothing."""
        held, self._held = self._held, False
        try:
            held and self.session.ask("unlock", lock=self._id)
        finally:
            self._alone and self.session.close()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.unlock()
        except Error:
            if kind is None:  # else the error of the work is the one that counts
                raise


def lock(key: str, wait: Optional[float] = None, *, path: Optional[str] = None, **kind: Any) -> Lock:
    """A Lock in a session of its own: the loss of another lock does not end it."""
    session = Session(path)
    try:
        return Lock(session, key, wait, alone=True, **kind)
    except BaseException:
        session.close()
        raise
