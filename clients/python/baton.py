"""Distributed locks through the agent of this host ("baton agent"):

    with baton.lock("invoice/42", wait=10) as lock:
        write(lock.token)       # what the lock protects refuses a lower token
        if lock.check() > 1:    # the seconds that are left for a step that must not happen twice
            pay()
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
        except OSError as e:
            self.close()
            raise Error("agent", f"no agent at {path}: {e}") from e

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a request of the protocol and return its answer."""
        if os.getpid() != self._pid:
            raise Error("bad", "the session is that of the process that forked: open another")
        self._id += 1
        request = {"id": self._id, "do": do, **{k: v for k, v in fields.items() if v is not None}}
        try:
            with contextlib.suppress(BrokenPipeError):  # the agent has ended the session, and said why
                self._socket.sendall(json.dumps(request).encode() + b"\n")
            return self._read(self._id)
        except BaseException as e:  # an interrupt, too: the answer would be taken for the next one
            if not isinstance(e, Error):
                self.close()
            if isinstance(e, OSError):
                raise Lost("lost", f"the agent has gone: {e}") from e
            raise

    def _read(self, asked: int = 0) -> dict[str, Any]:
        if not (line := self._in.readline()).endswith(b"\n"):
            raise ConnectionError("it has closed the connection")
        answer: dict[str, Any] = json.loads(line)
        own = answer.get("id", 0) == asked
        if answer["ok"] and own:
            return answer
        if answer["ok"] or "id" in answer and not own:
            raise ConnectionError("it has answered another request")
        "id" in answer or self.close()  # it is about the session, which has ended
        raise {"held": Held, "lost": Lost, "closing": Lost}.get(answer["error"], Error)(answer["error"], answer["message"])

    def close(self) -> None:
        self._in.close()
        self._socket.close()


class Lock:
    """A lock that is held. token is an int that rises with every lock of the key.
    wait, max_hold: seconds; a wait of 0 is none, of None as long as it takes. permits: n, of."""

    def __init__(self, session: Session, key: str, wait: Optional[float] = None, shared: bool = False,
                 permits: Optional[tuple[int, int]] = None, max_hold: Optional[float] = None) -> None:
        ms = [None if s is None else math.ceil(s * 1000) for s in (wait, max_hold)]
        mode, (n, of) = "permits" if permits else "shared" if shared else None, permits or (None, None)
        answer = session.ask("lock", key=key, wait_ms=ms[0], max_hold_ms=ms[1], mode=mode, n=n, of=of)
        self.key, self.token, self.session, self._id, self._alone = key, int(answer["token"]), session, session._id, False
        self._held = True

    def check(self) -> float:
        """The seconds for which the lock is certain from now, even if the agent stops. Raises Lost."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine is suspended
        sent = time.clock_gettime(clock)
        until = sent + self.session.ask("check", lock=self._id)["remaining_ms"] / 1000
        return until - time.clock_gettime(clock)

    def unlock(self) -> None:
        """Unlock. Raises Lost if the lock had ended before. A second call does nothing."""
        held, self._held = self._held, False
        try:
            held and self.session.ask("unlock", lock=self._id)
        finally:
            if self._alone:
                self.session.close()

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
        held = Lock(session, key, wait, **kind)
        held._alone = True
        return held
    except BaseException:
        session.close()
        raise
