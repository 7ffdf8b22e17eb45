import java.nio.file.*;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.leader.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.retry.ExponentialBackoffRetry;

// Contender SERVERS PATH mutex|write|read|semaphore|latch|selector DIR SECTIONS: takes
// Apache Curator's lock that often and enters the section that the files in DIR guard.
// With "hold" for SECTIONS it takes the lock, says so, and stays.
public class Contender {
    public static void main(String[] args) throws Exception {
        String kind = args[2];
        Path dir = Paths.get(args[3]);
        CuratorFramework client = CuratorFrameworkFactory.builder().connectString(args[0])
            .sessionTimeoutMs(args[4].equals("hold") ? 4000 : 20_000).connectionTimeoutMs(20_000).retryPolicy(new ExponentialBackoffRetry(100, 10)).build();
        client.start();
        client.blockUntilConnected();
        InterProcessLock lock = new InterProcessMutex(client, args[1]);
        switch (kind) {
        case "semaphore":
            lock = new InterProcessSemaphoreMutex(client, args[1]);
            break;
        case "latch":
        case "selector":
            lock = new Leader(client, args[1], kind.equals("latch"));
            break;
        case "write":
        case "read":
            InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, args[1]);
            lock = kind.equals("write") ? both.writeLock() : both.readLock();
        }
        System.out.println("ready");
        System.in.read();
        if (args[4].equals("hold")) {
            lock.acquire();
            System.out.println("held");
            Thread.sleep(600_000);
        }
        for (int i = Integer.parseInt(args[4]); i > 0; i--) {
            if (!lock.acquire(60, TimeUnit.SECONDS)) {
                System.out.println("starved");
                System.exit(1);
            }
            try {
                section(dir, kind.equals("read"));
            } finally {
                lock.release();
            }
        }
        System.out.println("done");
        client.close();
        System.exit(0);
    }

    static void section(Path dir, boolean reads) throws Exception {
        Path writer = dir.resolve("writer"), readers = dir.resolve("readers"), counter = dir.resolve("counter");
        if (reads) {
            Path own = readers.resolve(ProcessHandle.current().pid() + "." + ThreadLocalRandom.current().nextLong());
            Files.createFile(own);
            if (Files.exists(writer)) {
                overlap("a reader beside a writer");
            }
            Thread.sleep(ThreadLocalRandom.current().nextInt(3));
            Files.delete(own);
            return;
        }
        try {
            Files.createFile(writer);
        } catch (FileAlreadyExistsException e) {
            overlap("two writers");
        }
        try (DirectoryStream<Path> others = Files.newDirectoryStream(readers)) {
            if (others.iterator().hasNext()) {
                overlap("a writer beside a reader");
            }
        }
        int n = Integer.parseInt(Files.readString(counter).trim());
        Thread.sleep(ThreadLocalRandom.current().nextInt(2));
        Files.writeString(counter, Integer.toString(n + 1));
        Files.delete(writer);
    }

    static void overlap(String what) {
        System.out.println("overlap: " + what);
        System.exit(1);
    }

    // Leader has the leadership of a LeaderLatch or of a LeaderSelector as a lock.
    static class Leader implements InterProcessLock {
        final CuratorFramework client;
        final String path;
        final boolean byLatch;
        LeaderLatch latch;
        LeaderSelector selector;
        CountDownLatch over;

        Leader(CuratorFramework client, String path, boolean byLatch) {
            this.client = client;
            this.path = path;
            this.byLatch = byLatch;
        }

        public void acquire() throws Exception {
            acquire(60, TimeUnit.SECONDS);
        }

        public boolean acquire(long time, TimeUnit unit) throws Exception {
            if (byLatch) {
                latch = new LeaderLatch(client, path);
                latch.start();
                return latch.await(time, unit);
            }
            CountDownLatch led = new CountDownLatch(1), ends = new CountDownLatch(1);
            over = ends;
            selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
                public void takeLeadership(CuratorFramework client) throws Exception {
                    led.countDown();
                    ends.await();
                }
            });
            selector.start();
            return led.await(time, unit);
        }

        public void release() throws Exception {
            if (byLatch) {
                latch.close();
            } else {
                over.countDown();
            }
        }

        public boolean isAcquiredInThisProcess() {
            return byLatch ? latch.hasLeadership() : selector.hasLeadership();
        }
    }
}
