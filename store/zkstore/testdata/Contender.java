import java.nio.file.*;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.retry.ExponentialBackoffRetry;

// Contender SERVERS PATH mutex|write|read DIR SECTIONS: takes Apache Curator's
// lock that often and enters the section that the files in DIR guard. With
// "hold" for SECTIONS it takes the lock, says so, and stays.
public class Contender {
    public static void main(String[] args) throws Exception {
        String kind = args[2];
        Path dir = Paths.get(args[3]);
        CuratorFramework client = CuratorFrameworkFactory.builder().connectString(args[0])
            .sessionTimeoutMs(args[4].equals("hold") ? 4000 : 20_000).connectionTimeoutMs(20_000).retryPolicy(new ExponentialBackoffRetry(100, 10)).build();
        client.start();
        client.blockUntilConnected();
        InterProcessLock lock = new InterProcessMutex(client, args[1]);
        if (!kind.equals("mutex")) {
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
}
