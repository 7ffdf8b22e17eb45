package io.github.batonhq.baton;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.function.Supplier;

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
        Session session = open();
        try {
            return session.lock(key, kind, true);
        } catch (RuntimeException e) {
            session.close();
            throw e;
        }
    }

    /** A lock, or null if another process has it. */
    public static Lock tryLock(String key, Kind kind) { return orNull(() -> lock(key, kind.copy().within(Duration.ZERO))); }

    /**
     * Runs an operation unless it has succeeded before, records the text that work returns, and returns what is recorded. If work
     * throws Failed, it has failed for good; after anything else that it throws the next call runs it.
     */
    public static <E extends Exception> String once(String key, Kind kind, Work<E> work) throws E {
        try (Session session = open()) { // whose end gives up an attempt
            Map<String, Object> answer = session.ask("once", kind.with("key", key));
            if (!Objects.equals(answer.get("run"), true)) return (String) answer.getOrDefault("result", "");
            return run(work, session.locked(key, answer, false), (failed, text) ->
                session.ask("finish", Map.of("lock", answer.get("id"), failed ? "failed" : "result", text)));
        }
    }

    /** Runs the work of an operation, and records the outcome. If that fails, the error has the result of the work. */
    static <E extends Exception> String run(Work<E> work, Lock attempt, BiConsumer<Boolean, String> finish) throws E {
        String result = null;
        Failed failed = null;
        try {
            result = Objects.requireNonNullElse(work.run(attempt), "");
        } catch (Failed e) {
            failed = e;
        }
        try {
            finish.accept(failed != null, failed != null ? failed.getMessage() : result);
        } catch (Failure e) {
            e.result = result;
            if (failed != null) e.addSuppressed(failed);
            throw e;
        }
        if (failed != null) throw failed;
        return result;
    }

    /** Asks a rule of the agent (--rules) for a cost. */
    public static Taken take(String rule, String key, long cost) {
        try (Session session = open()) {
            return Taken.of(true, session.ask("take", Map.of("rule", rule, "key", key, "cost", cost)));
        } catch (Failure e) {
            if (e.code.equals("limited")) return Taken.of(false, e.answer);
            throw e;
        }
    }

    /** Who leads: has the lock of the key with a value. */
    public static Optional<Leader> leader(String key) {
        try (Session session = open()) {
            Map<String, Object> answer = session.ask("leader", Map.of("key", key));
            if (!Objects.equals(answer.get("led"), true)) return Optional.empty();
            return Optional.of(new Leader((String) answer.getOrDefault("value", ""), Long.parseLong((String) answer.getOrDefault("token", "0"))));
        }
    }

    private static Session open() { return new Session(Objects.requireNonNullElse(System.getenv("BATON_AGENT"), "/run/baton/agent.sock")); }

    static Lock orNull(Supplier<Lock> lock) {
        try { return lock.get(); } catch (Held e) { return null; }
    }

    /** The nanoseconds since the machine has started, also while it was suspended, in hundredths of a second; 0 if it is not Linux. */
    static long uptime() {
        try {
            return (long) (1e9 * Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]));
        } catch (IOException | RuntimeException e) {
            return 0;
        }
    }

    /** What kind of lock. A new one is an exclusive one, and waits as long as it takes. */
    public static final class Kind {
        final Map<String, Object> fields = new HashMap<>();
        Duration ttl; // over HTTP

        private Kind set(String name, Object value) { fields.put(name, value); return this; }

        /** How long to wait; zero is not at all. */
        public Kind within(Duration wait) { return set("wait_ms", milliseconds(wait)); }

        /** Of the agent: ends the session if the lock is held for longer, a bound for a process that is stopped. */
        public Kind maxHold(Duration most) { return set("max_hold_ms", milliseconds(most)); }

        /** Over HTTP: how long the lock outlives a client that dies. Defaults to 15 seconds. */
        public Kind ttl(Duration ttl) { this.ttl = ttl; return this; }

        /** Is shown as the holder: the name of a leader. */
        public Kind value(String value) { return set("value", value); }

        public Kind shared() { return set("mode", "shared"); }
        public Kind permits(int n, int of) { return set("mode", "permits").set("n", n).set("of", of); }

        static long milliseconds(Duration time) {
            if (time.isNegative()) throw new Failure("bad", time + ": a time must be 0 or more");
            return time.compareTo(Duration.ofDays(366)) > 0 ? Duration.ofDays(366).toMillis() : time.plusNanos(999_999).toMillis();
        }

        Kind copy() {
            Kind copy = new Kind().ttl(ttl);
            copy.fields.putAll(fields);
            return copy;
        }

        /** The request to the agent. */
        Map<String, Object> with(String name, Object value) {
            if (ttl != null) throw new Failure("bad", "ttl is for servers: the agent renews the lock as long as the connection is there");
            return copy().set(name, value).fields;
        }
    }

    /** A lock that is held. */
    public abstract static class Lock implements AutoCloseable {
        public final String key;
        /** It rises with every lock of the key. */
        public final long token;
        /** Of once. Above 1, an earlier one was not finished, and may have had effects. */
        public final long attempts;

        Lock(String key, Map<String, Object> answer, Function<String, Long> number) {
            this.key = key;
            token = number.apply("token");
            attempts = answer.containsKey("attempts") ? number.apply("attempts") : 1;
        }

        /** The time for which the lock is certain from now, even if the agent, or all servers, stop. Throws Lost. */
        public abstract Duration check();

        /** Unlocks. Throws Lost if the lock had ended before. A second call does nothing. */
        @Override
        public abstract void close();
    }

    /** What once runs. */
    public interface Work<E extends Exception> { String run(Lock attempt) throws E; }

    /** The agent, or a server, refused the request, or cannot be reached. */
    public static class Failure extends RuntimeException {
        public final String code; // a word of the protocol, such as "busy", or "agent"
        public String result; // of once: what the work returned, if that could not be recorded; else null
        transient Map<String, Object> answer = Map.of();
        Failure(String code, String message) { super(message); this.code = code; }
    }

    /** Another process has the lock, and the wait is over. */
    public static final class Held extends Failure { Held(String message) { super("held", message); } }

    /** The session, or the lease, has ended, and all its locks: another process may have them. */
    public static final class Lost extends Failure { Lost(String message) { super("lost", message); } }

    /** The operation of once has failed for good. Throw it in the work to record that. */
    public static final class Failed extends Failure { public Failed(String why) { super("failed", why); } }

    static Failure failure(String code, String message) {
        return switch (code) {
            case "held" -> new Held(message);
            case "lost", "closing", "not_found" -> new Lost(message);
            case "failed" -> new Failed(message);
            default -> new Failure(code, message);
        };
    }
}
