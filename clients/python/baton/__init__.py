"""Distributed locks through the agent of this host ("baton agent"):

    with baton.lock("invoice/42", wait=10) as lock:
        write(lock.token)            # what the lock protects refuses a lower token
        if lock.check() > 1: pay()   # the seconds that are left for a step that must not happen twice
"""
import contextlib
import errno
import json
import os
import socket
import struct
import threading
from typing import Any, Callable, Optional

from .common import Block, Error, Failed, Held, Leader, Lost, Taken, keeping, milliseconds, now

__all__ = ["Error", "Failed", "Held", "Leader", "Lock", "Lost", "Session", "Taken", "leader", "lock", "once", "take", "try_lock"]
SILENCE = 3  # seconds, after which the agent is asked for a sign of life; it hangs after as many more
PING = 2**53 - 1  # the id of these requests


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
                mend = "see --group and --mode of the agent" if e.errno == errno.EACCES else "start baton agent --socket, or set BATON_AGENT"
                raise Error("agent", f"no agent at {path}: {e.strerror}: {mend}") from e
            raise

    def ask(self, do: str, needs: Optional[str] = None, **fields: Any) -> dict[str, Any]:
        """Send a request of the protocol and return its answer, which must have the number that it needs."""
        if os.getpid() != self._pid:
            raise Error("bad", "the session belongs to the parent process: open another in this one")
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
                kinds = {"held": Held, "lost": Lost, "closing": Lost, "failed": Failed, "bad": Error}
                kind = ok or kinds.get(why[0], Error if about or not asked else Lost)
            except (ValueError, LookupError, TypeError):
                ok = None
        if ok is not False or about not in (asked, 0):
            raise ConnectionError(errno.EBADMSG, "what it answers is not of baton agent")
        error = kind(*why)
        error.answer = answer
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
        self._over = self._over or Lost("lost", "the session was closed")
        self._socket.close()


class Lock(Block):
    """A lock that is held. token is an int that rises with every lock of the key.
    wait, max_hold: seconds; a wait of 0 is none, of None as long as it takes. permits: n, of. value: shown as the holder, a leader's name."""

    def __init__(self, session: Session, key: str, wait: Optional[float] = None, shared: bool = False,
                 permits: Optional[tuple[int, int]] = None, max_hold: Optional[float] = None, value: Optional[str] = None,
                 alone: bool = False, answer: Optional[dict[str, Any]] = None) -> None:
        mode, (n, of) = "permits" if permits else "shared" if shared else None, permits or (None, None)
        answer = answer or session.ask("lock", "token", key=key, wait_ms=milliseconds("wait", wait),
                                       max_hold_ms=milliseconds("max_hold", max_hold), mode=mode, n=n, of=of, value=value)
        self.key, self.token, self.session, self.attempts = key, int(answer["token"]), session, answer.get("attempts", 1)
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


def lock(key: str, wait: Optional[float] = None, *, path: Optional[str] = None, **kind: Any) -> Lock:
    """A Lock in a session of its own: the loss of another lock does not end it."""
    session = Session(path)
    try:
        return Lock(session, key, wait, alone=True, **kind)
    except BaseException:
        session.close()
        raise


def try_lock(key: str, **kind: Any) -> Optional[Lock]:
    """A Lock, or None if another process has it."""
    try:
        return lock(key, 0, **kind)
    except Held:
        return None


def once(key: str, work: Callable[[Lock], Optional[str]], wait: Optional[float] = None, *, path: Optional[str] = None,
         max_hold: Optional[float] = None, request: Optional[str] = None) -> str:
    """Run an operation unless it has succeeded before, record what work returns, and return what is recorded. If work raises
    Failed, it has failed for good; after any other error the next call runs it. request: another one under this key is refused.
    Above 1, attempts of the Lock that work gets says that an earlier one was not finished, and may have had effects."""
    with contextlib.closing(Session(path)) as session:  # whose end gives up an attempt
        answer = session.ask("once", key=key, wait_ms=milliseconds("wait", wait), max_hold_ms=milliseconds("max_hold", max_hold), request=request)
        if not answer.get("run"):
            return answer.get("result", "")
        try:
            result = work(Lock(session, key, answer=answer)) or ""
        except Failed as e:
            session.ask("finish", lock=answer["id"], failed=e.args[1])
            raise
        with keeping(result):
            session.ask("finish", lock=answer["id"], result=result)
        return result


def take(rule: str, key: str = "", cost: Optional[int] = None, *, tier: Optional[str] = None, path: Optional[str] = None) -> Taken:
    """Ask a rule of the agent (--rules) for a cost."""
    with contextlib.closing(Session(path)) as session:
        try:
            return Taken.of(True, session.ask("take", rule=rule, key=key, tier=tier, cost=cost))
        except Error as e:
            if e.args[0] != "limited":
                raise
            return Taken.of(False, e.answer)


def leader(key: str, *, path: Optional[str] = None) -> Optional[Leader]:
    """Who leads: has the lock of the key with a value. None if nobody does."""
    with contextlib.closing(Session(path)) as session:
        answer = session.ask("leader", key=key)
    return Leader(answer.get("value", ""), int(answer.get("token", 0))) if answer["led"] else None
