package io.github.batonhq.baton;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;

/** A connection to the agent. Its end is that of all its locks. It makes one request at a time, for any thread. */
public final class Session implements AutoCloseable {
    private final SocketChannel channel;
    private final InputStream in;
    private long id;
    private volatile Baton.Failure ended; // why

    public Session(String path) {
        String none = "no agent at " + path + ": ";
        try {
            channel = SocketChannel.open(UnixDomainSocketAddress.of(path));
        } catch (IOException | IllegalArgumentException e) {
            throw new Baton.Failure("agent", none + e.getMessage());
        }
        in = new BufferedInputStream(Channels.newInputStream(channel));
        try {
            read(0); // the greeting
        } catch (IOException | RuntimeException e) {
            close();
            throw e instanceof Baton.Failure f ? f : new Baton.Failure("agent", none + e.getMessage());
        }
    }

    /** A lock of this session. */
    public Baton.Lock lock(String key, Baton.Kind kind) {
        return new Baton.Lock(this, key, kind, false);
    }

    /** Sends a request of the protocol, and returns its answer: Maps, Lists, Strings, Longs and Booleans. */
    public synchronized Map<String, Object> ask(String what, Map<String, ?> fields) {
        if (ended != null) throw ended;
        Map<String, Object> request = new HashMap<>(fields);
        request.putAll(Map.of("id", ++id, "do", what));
        byte[] line = (Json.write(request) + "\n").getBytes(StandardCharsets.UTF_8);
        try {
            try {
                Channels.newOutputStream(channel).write(line);
            } catch (IOException e) {
                // The agent has ended the session, and said why.
            }
            return read(id);
        } catch (IOException | IllegalArgumentException e) {
            throw ended = new Baton.Lost("the agent has gone: " + e.getMessage());
        }
    }

    private Map<String, Object> read(long asked) throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int b; (b = in.read()) != '\n'; line.write(b)) {
            if (b < 0) throw new EOFException("it has closed the connection");
        }
        Map<String, Object> answer = Json.read(line.toString(StandardCharsets.UTF_8));
        Object ok = answer.get("ok"), about = answer.getOrDefault("id", 0L); // 0: about the session
        boolean own = Objects.equals(about, asked), session = Objects.equals(about, 0L);
        if (own && Objects.equals(ok, true)) return answer;
        if (!Objects.equals(ok, false) || !own && !session) throw new IOException("it has answered what was not asked");
        Baton.Failure failure = Baton.failure("" + answer.get("error"), "" + answer.get("message"));
        if (session) ended = failure;
        throw failure;
    }

    /** A number of an answer, which is not believed without one. */
    long number(Map<String, Object> answer, String name) {
        try {
            return Long.parseLong("" + answer.get(name));
        } catch (NumberFormatException e) {
            throw ended = new Baton.Lost("the agent has answered without " + name);
        }
    }

    /** Closes the connection: do so when no step under a lock of it is under way any more. */
    @Override
    public void close() {
        if (ended == null) ended = new Baton.Lost("the session was closed");
        try {
            channel.close();
        } catch (IOException e) {
            // It is closed nevertheless.
        }
    }
}
