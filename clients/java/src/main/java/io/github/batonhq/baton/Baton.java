package io.github.batonhq.baton;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;

/**
 * Distributed locks through the agent of this host ("baton agent"):
 *
 * <pre>{@code
 * try (Baton.Lock lock = Baton.lock("invoice/42", new Baton.Kind().within(Duration.ofSeconds(10)))) {
 *     write(lock.token);                          // what the lock protects refuses a lower token
 *     if (lock.check().toMillis() > 1000) pay();  // the time that is left for a step that must not happen twice
 * }
 * }</pre>
 */
public final class Baton {
    private Baton() {}

    /** A lock in a session of its own: the loss of another lock does not end it. */
    public static Lock lock(String key, Kind kind) {
        Session session = new Session(Objects.requireNonNullElse(System.getenv("BATON_AGENT"), "/run/baton/agent.sock"));
        try {
            return new Lock(session, key, kind, true);
        } catch (RuntimeException e) {
            session.close();
            throw e;
        }
    }

    /** What kind of lock. A new one is an exclusive one, and waits as long as it takes. */
    public static final class Kind {
        private final Map<String, Object> fields = new HashMap<>();

        private Kind set(String name, Object value) { fields.put(name, value); return this; }

        /** How long to wait; zero is not at all. */
        public Kind within(Duration wait) { return set("wait_ms", milliseconds(wait)); }

        /** Ends the session if the lock is held for longer: a bound for a process that is stopped. */
        public Kind maxHold(Duration most) { return set("max_hold_ms", milliseconds(most)); }

        private static long milliseconds(Duration time) {
            if (time.isNegative()) throw new Failure("bad", time + " is below 0");
            return time.plusNanos(999_999).toMillis();
        }

        public Kind shared() { return set("mode", "shared"); }
        public Kind permits(int n, int of) { return set("mode", "permits").set("n", n).set("of", of); }
    }

    /** A lock that is held. */
    public static final class Lock implements AutoCloseable {
        public final String key;
        /** It rises with every lock of the key. */
        public final long token;
        private final Session session;
        private final boolean alone;
        private final long id;
        private boolean held = true;

        Lock(Session session, String key, Kind kind, boolean alone) {
            Map<String, Object> request = new HashMap<>(kind.fields);
            request.put("key", key);
            Map<String, Object> answer = session.ask("lock", request);
            this.session = session;
            this.alone = alone;
            this.key = key;
            token = session.number(answer, "token");
            id = session.number(answer, "id");
        }

        /** The time for which the lock is certain from now, even if the agent stops. Throws Lost. */
        public Duration check() {
            long running = System.nanoTime(), up = uptime();
            long left = session.number(session.ask("check", Map.of("lock", id)), "remaining_ms");
            // nanoTime stands still while the machine is suspended. Linux' uptime goes on; it has hundredths of a second.
            return Duration.ofMillis(left).minusNanos(Math.max(System.nanoTime() - running, uptime() - up + 10_000_000));
        }

        private static long uptime() {
            try {
                return (long) (1e9 * Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]));
            } catch (IOException | RuntimeException e) {
                return 0; // it is not Linux
            }
        }

        /** Unlocks. Throws Lost if the lock had ended before. A second call does nothing. */
        @Override
        public void close() {
            boolean was = held;
            held = false;
            try {
                if (was) session.ask("unlock", Map.of("lock", id));
            } finally {
                if (alone) session.close();
            }
        }
    }

    /** The agent refused the request, or cannot be reached. */
    public static class Failure extends RuntimeException {
        public final String code; // a word of the protocol, such as "busy", or "agent"
        Failure(String code, String message) { super(message); this.code = code; }
    }

    /** Another process has the lock, and the wait is over. */
    public static final class Held extends Failure { Held(String message) { super("held", message); } }

    /** The session has ended, and all its locks: another process may have them. */
    public static final class Lost extends Failure { Lost(String message) { super("lost", message); } }

    static Failure failure(String code, String message) {
        return switch (code) {
            case "held" -> new Held(message);
            case "lost", "closing" -> new Lost(message);
            default -> new Failure(code, message);
        };
    }
}
