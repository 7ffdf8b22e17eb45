"""Distributed locks through the agent of this host ("baton agent"):

    with baton.lock("invoice/42", wait=10) as lock:
        write(lock.token)            # what the lock protects refuses a lower token
        if lock.check() > 1: pay()   # the seconds that are left for a step that must not happen twice
"""
import contextlib
import errno
import json
import math
import os
import socket
import struct
import threading
import time
from typing import Any, Optional

SILENCE = 3  # seconds, after which the agent is asked for a sign of life; it hangs after as many more
PING = 2**53 - 1  # the id of these requests


def now() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # goes on while the machine is suspended


def milliseconds(name: str, seconds: Optional[float]) -> Optional[int]:
    """None, and infinity, are no bound."""
    if seconds is not None and not seconds >= 0:  # nor is it NaN
        raise Error("bad", f"{name} is {seconds}: it is a number of seconds, not below 0")
    return None if seconds in (None, math.inf) else math.ceil(seconds * 1000)


class Error(Exception):
    """The agent refused the request, or cannot be reached. args: a code such as busy, a message."""

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


class Held(Error):
    """Another process has the lock, and the wait is over."""


class Lost(Error):
    """The session has ended, and all its locks: another process may have them."""


class Session:
    """A connection to the agent, for all threads: it makes one request at a time. Its end is that of all its locks."""

    def __init__(self, path: Optional[str] = None) -> None:
        path = path or os.environ.get("BATON_AGENT", "/run/baton/agent.sock")
        self._pid, self._id, self._rest, self._turn, self._socket = os.getpid(), 0, b"", threading.RLock(), socket.socket(socket.AF_UNIX)
        self._over: Optional[Error] = None  # why
        self._until = 0.0  # what is held is certain until then, as far as the agent has told
        try:
            for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # with settimeout connect would fail while the agent is busy
                self._socket.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", SILENCE, 0))
            self._socket.connect(path)
            self._read()  # the greeting
        except BaseException as e:
            self.close()
            if isinstance(e, OSError) and e.errno:  # else a signal handler has raised it
                raise Error("agent", f"no agent at {path}: {e.strerror}") from e
            raise

    def ask(self, do: str, needs: Optional[str] = None, **fields: Any) -> dict[str, Any]:
        """Send a request of the protocol and return its answer, which must have the number that it needs."""
        if os.getpid() != self._pid:
            raise Error("bad", "the session is that of the process that forked: open another")
        with self._turn:
            if self._over:
                raise self._over
            self._id += 1
            line, sent = json.dumps({"id": self._id, "do": do, **{k: v for k, v in fields.items() if v is not None}}), now()
            try:
                with contextlib.suppress(BrokenPipeError):  # the agent has ended the session, and said why
                    self._socket.sendall(line.encode() + b"\n")
                return self._read(self._id, needs, sent)
            except BaseException as e:  # an interrupt, too: the answer would be taken for the next one
                if isinstance(e, Error):
                    raise
                known = isinstance(e, OSError) and e.errno  # else a signal handler has raised it
                self._over = Lost("lost", f"the agent has gone: {e.strerror}" if known else f"the session has ended at {e!r}")
                if known:
                    raise self._over from e
                raise

    def _read(self, asked: int = 0, needs: Optional[str] = None, sent: float = 0) -> dict[str, Any]:
        ok, about = True, PING
        while ok is True and about == PING:
            line = self._line()
            try:
                answer = json.loads(line)
                ok, about = answer["ok"], answer.get("id", 0)
                if ok is True and about == asked:
                    if needs:
                        answer[needs] = int(answer[needs])
                    self._until = max(self._until, sent + answer.get("remaining_ms", 0) / 1000)
                    return answer
                why = () if ok else (answer["error"], answer["message"])
                kind = ok or {"held": Held, "lost": Lost, "closing": Lost}.get(why[0], Error)
            except (ValueError, LookupError, TypeError):
                ok = None
        if ok is not False or about not in (asked, 0):
            raise ConnectionError(errno.EBADMSG, "it has answered what was not asked")
        error = kind(*why)
        self._over = self._over if about else error  # without an id it is about the session, which has ended
        raise error

    def _line(self) -> bytes:
        silent = False
        while b"\n" not in self._rest:
            try:
                part = self._socket.recv(65536)
            except BlockingIOError:
                if silent and now() > self._until:
                    self.close()
                    raise TimeoutError(errno.ETIMEDOUT, "it does not answer") from None
                silent or self._socket.sendall(b'{"id":%d,"do":"ping"}\n' % PING)
                silent = True
                continue
            if not part:
                raise ConnectionError(errno.ECONNRESET, "it has closed the connection")
            self._rest, silent = self._rest + part, False
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        self._socket.close()


class Lock:
    """A lock that is held. token is an int that rises with every lock of the key.
    wait, max_hold: seconds; a wait of 0 is none, of None as long as it takes. permits: n, of."""

    def __init__(self, session: Session, key: str, wait: Optional[float] = None, shared: bool = False,
                 permits: Optional[tuple[int, int]] = None, max_hold: Optional[float] = None, alone: bool = False) -> None:
        mode, (n, of) = "permits" if permits else "shared" if shared else None, permits or (None, None)
        answer = session.ask("lock", "token", key=key, wait_ms=milliseconds("wait", wait), max_hold_ms=milliseconds("max_hold", max_hold),
                             mode=mode, n=n, of=of)
        self.key, self.token, self.session = key, answer["token"], session
        self._id, self._alone, self._held = answer["id"], alone, True

    def check(self) -> float:
        """The seconds for which the lock is certain from now, even if the agent stops. Raises Lost, also
        if the agent does not answer until what it has last told is over."""
        sent = now()
        return sent + self.session.ask("check", "remaining_ms", lock=self._id)["remaining_ms"] / 1000 - now()

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
