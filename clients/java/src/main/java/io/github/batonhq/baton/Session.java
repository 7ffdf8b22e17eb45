package io.github.batonhq.baton;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.ReentrantLock;

/** A connection to the agent. Its end is that of all its locks. It makes one request at a time, for any thread. */
public final class Session implements AutoCloseable {
    private static final int SILENCE = 3000; // ms, after which the agent is asked for a sign of life; it hangs after as many more
    private static final long PING = (1L << 53) - 1; // the id of these requests
    private final SocketChannel channel;
    private final Selector selector;
    private final ByteBuffer in = ByteBuffer.allocate(1 << 14).flip();
    private final ReentrantLock turn = new ReentrantLock();
    private long id;
    private long until = System.nanoTime(); // what is held is certain until then, as far as the agent has told
    private volatile Baton.Failure ended; // why

    public Session(String path) {
        String none = "no agent at " + path + ": ", help = ": start baton agent --socket, or set BATON_AGENT; see its --group and --mode";
        try {
            channel = SocketChannel.open(StandardProtocolFamily.UNIX);
            selector = Selector.open();
        } catch (IOException e) {
            throw new Baton.Failure("agent", none + e.getMessage() + help);
        }
        try {
            channel.configureBlocking(false);
            if (!channel.connect(UnixDomainSocketAddress.of(path))) throw new IOException("too many processes connect to it at once");
            channel.register(selector, SelectionKey.OP_READ);
            read(0); // the greeting
        } catch (IOException | RuntimeException e) {
            close();
            throw e instanceof Baton.Failure f ? f : new Baton.Failure("agent", none + e.getMessage() + help);
        }
    }

    /** A lock of this session. */
    public Baton.Lock lock(String key, Baton.Kind kind) { return lock(key, kind, false); }
    Baton.Lock lock(String key, Baton.Kind kind, boolean alone) { return locked(key, ask("lock", kind.with("key", key)), alone); }
    Baton.Lock locked(String key, Map<String, Object> answer, boolean alone) { return new Held(key, answer, alone); }

    /** Sends a request of the protocol, and returns its answer: Maps, Lists, Strings, Longs and Booleans. */
    public Map<String, Object> ask(String what, Map<String, ?> fields) {
        turn.lock(); // synchronized would keep the carrier of a virtual thread
        try {
            return asked(what, fields);
        } finally {
            turn.unlock();
        }
    }

    private Map<String, Object> asked(String what, Map<String, ?> fields) {
        if (ended != null) throw ended;
        Map<String, Object> request = new HashMap<>(fields);
        request.putAll(Map.of("id", ++id, "do", what));
        long sent = System.nanoTime();
        try {
            try {
                write(request);
            } catch (IOException e) {
                // The agent has ended the session, and said why.
            }
            Map<String, Object> answer = read(id);
            if (answer.get("remaining_ms") instanceof Long left) until = Math.max(until - sent, left * 1_000_000) + sent;
            return answer;
        } catch (IOException | IllegalArgumentException | ClosedSelectorException e) {
            throw ended = new Baton.Lost("the agent has gone: " + e.getMessage());
        }
    }

    private void write(Map<String, ?> request) throws IOException {
        ByteBuffer line = ByteBuffer.wrap((Json.write(request) + "\n").getBytes(StandardCharsets.UTF_8));
        while (line.hasRemaining()) {
            if (channel.write(line) == 0) throw new IOException("it does not read");
        }
    }

    private String line() throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (boolean silent = false;;) {
            while (in.hasRemaining()) {
                byte b = in.get();
                if (b == '\n') return line.toString(StandardCharsets.UTF_8);
                line.write(b);
            }
            int n = channel.read(in.clear());
            in.flip();
            if (n < 0) throw new EOFException("it has closed the connection");
            if (n > 0 || selector.select(key -> {}, SILENCE) > 0) continue;
            boolean interrupted = Thread.currentThread().isInterrupted();
            if (interrupted || silent && System.nanoTime() - until > 0) {
                close();
                throw new IOException(interrupted ? "the thread was interrupted" : "it does not answer");
            }
            if (!silent) write(Map.of("id", PING, "do", "ping"));
            silent = true;
        }
    }

    private Map<String, Object> read(long asked) throws IOException {
        Map<String, Object> answer;
        do answer = Json.read(line());
        while (Objects.equals(answer.get("ok"), true) && Objects.equals(answer.get("id"), PING));
        Object ok = answer.get("ok"), about = answer.getOrDefault("id", 0L); // 0: about the session
        boolean own = Objects.equals(about, asked), session = Objects.equals(about, 0L);
        if (own && Objects.equals(ok, true)) return answer;
        if (!Objects.equals(ok, false) || !own && !session) throw new IOException("what it answers is not of baton agent");
        String code = "" + answer.get("error");
        Baton.Failure failure = Baton.failure(session && asked > 0 && !code.equals("bad") ? "lost" : code, "" + answer.get("message"));
        failure.answer = answer;
        if (session) ended = failure;
        throw failure;
    }

    /** A number of an answer, which is not believed without one. */
    long number(Map<String, Object> answer, String name) {
        try {
            return Long.parseLong("" + answer.get(name));
        } catch (NumberFormatException e) {
            throw ended = new Baton.Lost("what the agent answers is not of baton agent: " + name + " is missing");
        }
    }

    private final class Held extends Baton.Lock {
        private final boolean alone;
        private final long lock;
        private final AtomicBoolean held = new AtomicBoolean(true);

        Held(String key, Map<String, Object> answer, boolean alone) {
            super(key, answer, name -> number(answer, name));
            this.alone = alone;
            lock = number(answer, "id");
        }

        @Override
        public Duration check() {
            long running = System.nanoTime(), up = Baton.uptime();
            long left = number(ask("check", Map.of("lock", lock)), "remaining_ms");
            // nanoTime stands still while the machine is suspended.
            return Duration.ofMillis(left).minusNanos(Math.max(System.nanoTime() - running, Baton.uptime() - up + 10_000_000));
        }

        @Override
        public void close() {
            try {
                if (held.getAndSet(false)) ask("unlock", Map.of("lock", lock));
            } finally {
                if (alone) Session.this.close();
            }
        }
    }

    /** Closes the connection: do so when no step under a lock of it is under way any more. */
    @Override
    public void close() {
        if (ended == null) ended = new Baton.Lost("the session was closed");
        try {
            channel.close();
            selector.close();
        } catch (IOException e) {
            // It is closed nevertheless.
        }
    }
}
