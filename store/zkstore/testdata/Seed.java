import java.io.File;
import java.util.HashMap;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

// Seed DIR NODE NUMBER: writes a snapshot in which the next child of NODE has
// that number.
public class Seed {
    public static void main(String[] args) throws Exception {
        File dir = new File(args[0]);
        DataTree tree = new DataTree();
        long now = System.currentTimeMillis();
        tree.createNode(args[1], new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, 0, 0, 1, now);
        tree.getNode(args[1]).stat.setCversion(Integer.parseInt(args[2]));
        tree.lastProcessedZxid = 1;
        new FileTxnSnapLog(dir, dir).save(tree, new java.util.concurrent.ConcurrentHashMap<>(new HashMap<Long, Integer>()), true);
    }
}
