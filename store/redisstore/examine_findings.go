package redisstore

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// The thresholds of findings.
const (
	nearlyFull = 0.9
	longFork   = 100 * time.Millisecond
	// silenceForLong is the longest silence that a lease of fifteen seconds always
	// survives.
	silenceForLong = 5 * time.Second
	// smallPushBuffer is the possible size of a burst of pushes to one process: some
	// thousand locks that are released at once.
	smallPushBuffer = 1 << 20
)

func evicts(policy string) driver.Finding {
	return driver.Finding{
		Name: "maxmemory-policy", Severity: driver.Unsafe,
		What: "when its memory is full the server evicts keys (maxmemory-policy " + policy + "), and every lock is a key that may be evicted: another client gets it while its holder still counts on it",
		Mend: "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; caches belong on another server",
	}
}

func replica(primary string) driver.Finding {
	f := driver.Finding{
		Name: "replica", Severity: driver.Unsafe,
		What: "the server is a replica: it grants no locks, and what it shows is old",
		Mend: "connect to its primary, or through Sentinel: redis+sentinel://HOST,HOST,HOST/NAME",
	}
	if primary != "" {
		f.Mend = "connect to its primary, redis://" + primary + ", or through Sentinel: redis+sentinel://HOST,HOST,HOST/NAME"
	}
	return f
}

func judgeVersion(v string) (all findings.Table) {
	const mend = "upgrade to Redis 7 or later, or to Valkey"
	old := findings.Older(v, 6, 2)
	all.Say(old, "version", driver.Unsafe, mend, "the server is version %s, at least 6.2 is needed", v)
	all.Say(!old && findings.Older(v, 7, 0), "version", driver.Note, mend, "the server is version %s, which gets no corrections any more", v)
	return all
}

func (s *Store) sayNoChannels(all *findings.Table, command, answer string) {
	all.Say(true, "channels", driver.Slow, "ACL SETUSER NAME +publish +subscribe &"+s.names.own+"*, as Redis 7 gives a new user no channels",
		"the server does not let this user %s (%s): waiters are not told of their grant and ask for it up to a hundred times a second", command, answer)
}

// judgeSilence finds what a caller's client does to leases when a connection falls
// silent.
func judgeSilence(d time.Duration) (all findings.Table) {
	const (
		cost = "after a NAT or a load balancer has forgotten its connections leases are not renewed for as long, and shorter ones are lost"
		mend = "give the client a ReadTimeout of 2 s and a DialTimeout of 1 s"
		name = "silent-connections"
	)
	all.Say(d == 0, name, driver.Note, "make it with ClientOption.ConnWriteTimeout 2 s and Dialer.Timeout 1 s, or have redisstore.Open make one",
		"the program's rueidis client does not tell how long it waits on a connection on which nothing comes back, by default 11 s: %s", cost)
	all.Say(d == wire.Endless, name, driver.Unsafe, mend, "the program's client waits for ever on a connection on which nothing comes back: %s", cost)
	all.Say(d > silenceForLong && d != wire.Endless, name, driver.Unsafe, mend, "the program's client waits %v on a connection on which nothing comes back: %s", d, cost)
	return all
}

// judge returns the findings about one server.
func (s *Store) judge(f facts) []driver.Finding {
	var all findings.Table
	if f.info["role"] == "slave" {
		primary := ""
		if host := f.info["master_host"]; host != "" {
			primary = host + ":" + f.info["master_port"]
		}
		all = append(all, replica(primary))
	}
	all = append(all, judgeVersion(f.info["redis_version"])...)
	hidden := "CONFIG GET"
	if len(f.info) == 0 {
		hidden = "INFO"
	}
	all.Say(len(f.info) == 0 || f.config == nil, "hidden", driver.Note,
		"let the user that examines run INFO, CONFIG GET, SLOWLOG GET and ACL GETUSER (ACL SETUSER NAME +info +config|get +slowlog|get +acl|getuser), or look at these settings yourself",
		"the server does not let this user run %s: eviction, persistence or replication may be unsafe without a word here", hidden)
	if f.silent != "" {
		s.sayNoChannels(&all, "PUBLISH", f.silent)
	}
	judgeMemory(f, &all)
	judgePersistence(f, &all)
	judgeReplication(f, s.replicas.want, &all)
	judgeLoad(f, &all)
	judgeCluster(f, &all)
	all.Say(f.open, "auth", driver.Note, "set a password: ACL SETUSER default >PASSWORD, and name it in the URL with password-file or password-env",
		"the server asks for no password: any program that reaches it can take or break locks")
	return all
}

func judgeMemory(f facts, all *findings.Table) {
	if p := f.info["maxmemory_policy"]; p != "" && p != "noeviction" {
		*all = append(*all, evicts(p))
	}
	evicted := number(f.info["evicted_keys"])
	all.Say(evicted > 0, "evicted-keys", driver.Unsafe, "after correcting maxmemory-policy: CONFIG RESETSTAT, and see that INFO stats goes on saying evicted_keys:0",
		"the server has evicted %d keys since its start, any of which may have been a lock", evicted)
	used, limit := number(f.info["used_memory"]), number(f.info["maxmemory"])
	all.Say(limit > 0 && float64(used) >= nearlyFull*float64(limit), "maxmemory", driver.Unsafe, "give the server more memory (CONFIG SET maxmemory BYTES) or remove what else it keeps",
		"%d %% of maxmemory are in use: once it is full nothing can be locked, and leases are lost because they cannot be renewed", 100*used/max(limit, 1))
}

func judgePersistence(f facts, all *findings.Table) {
	const unsafe, note = driver.Unsafe, driver.Note
	aof, sync, save := f.info["aof_enabled"], f.config["appendfsync"], f.config["save"]
	all.Say(aof == "0" && save == "", "persistence", unsafe, "CONFIG SET appendonly yes, and the same in redis.conf; and have a server that crashed started again no sooner than the longest TTL later",
		"the server keeps nothing on disk: after a restart every lock is free while its holder still counts on it, for up to its TTL")
	all.Say(aof == "0" && save != "", "persistence", unsafe, "CONFIG SET appendonly yes, and the same in redis.conf",
		"the server only writes snapshots (save %s): a restart forgets every lock that is younger than the last one, while its holder still counts on it", save)
	all.Say(aof == "1" && sync == "no", "appendfsync", unsafe, "CONFIG SET appendfsync everysec, or always if locks must survive the crash of the machine, too",
		"the server never asks for its log to reach the disk (appendfsync no): a crash of the machine forgets the locks of the last half minute")
	all.Say(aof == "1" && sync == "everysec", "appendfsync", note, "CONFIG SET appendfsync always, if that is worth one disk write for each lock and unlock",
		"a crash of the machine (not of the server alone) forgets the locks of the last second or two (appendfsync everysec)")
	refuses := f.config["stop-writes-on-bgsave-error"] != "no"
	all.Say(f.info["rdb_last_bgsave_status"] == "err" && refuses && save != "", "last-save", unsafe,
		"look into the server's log for the reason, usually a full disk or missing permissions; it takes writes again after the next save that succeeds",
		"the last snapshot failed, and the server refuses all writes until one succeeds: nothing can be locked or renewed")
	all.Say(f.info["aof_last_write_status"] == "err", "last-save", unsafe, "look into the server's log for the reason, usually a full disk",
		"the server could not write its log, and refuses all writes until it can: nothing can be locked or renewed")
}

// judgeReplication adds the findings about replicas. waits is Config.Replicas.
func judgeReplication(f facts, waits Replicas, all *findings.Table) {
	replicas := number(f.info["connected_slaves"])
	if replicas == 0 || f.config == nil {
		return
	}
	want := number(f.config["min-replicas-to-write"])
	good, known := f.info["min_slaves_good_slaves"]
	few := want > 0 && known && number(good) < want
	all.Say(want == 0 && waits == NoReplicas, "min-replicas-to-write", driver.Unsafe, "wait for replicas (replicas=all in the URL, Config.Replicas), or CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 10, and the same in redis.conf; have the resource check tokens",
		"replication is asynchronous and a primary that has lost all its replicas goes on granting locks (min-replicas-to-write 0): when one of them is promoted, every lock granted since is held twice")
	all.Say(few, "min-replicas-to-write", driver.Unsafe, "bring the replicas back, or ask for fewer: CONFIG SET min-replicas-to-write NUMBER",
		"only %s of the %d replicas that min-replicas-to-write asks for keep up: the server refuses all writes, nothing can be locked or renewed", good, want)
	all.Say(want > 0 && !few && waits == NoReplicas, "replication", driver.Note, "wait for replicas (replicas=all in the URL, Config.Replicas), have the resource check tokens (they rise through a fail-over), or use a store with consensus",
		"replication is asynchronous: a fail-over can lose the locks that were granted last, and they are then held twice")
	all.Say(waits == AutoReplicas && f.closed, "replication", driver.Unsafe, "let the user of the URL run ROLE and WAIT (ACL SETUSER NAME +role +wait)",
		"the server does not let this user ask about its replicas, so a lock waits for none (replicas=auto): a fail-over can lose the locks that were granted last")
	all.Say(waits == AutoReplicas && !f.closed && replicas > 1, "replication", driver.Note, "wait for all that could be promoted: replicas=all in the URL",
		"a lock waits for one of %d replicas (replicas=auto): if another one is promoted, it may not know the locks that were granted last", replicas)
	for i := range replicas {
		r := f.info["slave"+strconv.FormatInt(i, 10)]
		state, lag := "", int64(0)
		for part := range strings.SplitSeq(r, ",") {
			name, value, _ := strings.Cut(part, "=")
			switch name {
			case "state":
				state = value
			case "lag":
				lag = number(value)
			}
		}
		all.Say(r != "" && (state != "online" || lag >= 10), "replica-lag", driver.Note, "look at the replica: its network, its disk, its log",
			"a replica does not keep up (%s, %d s behind): promoted now, it would know none of the locks granted since", state, lag)
	}
}

func judgeLoad(f facts, all *findings.Table) {
	clients, most := number(f.info["connected_clients"]), number(f.config["maxclients"])
	all.Say(most > 0 && float64(clients) >= nearlyFull*float64(most), "maxclients", driver.Unsafe,
		"CONFIG SET maxclients NUMBER (and let it open as many files), or find the client that does not close connections: CLIENT LIST",
		"%d of %d connections are taken: the next ones are refused, and a program that must connect again loses its leases", clients, most)
	if n := len(f.slow); n > 0 {
		all.Say(true, "slowlog", driver.Slow, "SLOWLOG GET shows them; move what is slow to another server, KEYS and big deletions above all (UNLINK, SCAN)",
			"%s in the last hour, the slowest %s with %v: every lock waits while one of them runs", counted(n, "slow command"), f.slow[0].name, f.slow[0].took.Round(100*time.Microsecond))
	}
	fork := time.Duration(number(f.info["latest_fork_usec"])) * time.Microsecond
	all.Say(fork >= longFork, "fork", driver.Slow, "make the data smaller, switch transparent huge pages off (echo never > /sys/kernel/mm/transparent_hugepage/enabled), or save less often",
		"the server stood still for %v when it last began to save", fork.Round(time.Millisecond))
	// normal H S T slave H S T pubsub H S T
	limits := strings.Fields(f.config["client-output-buffer-limit"])
	if i := slices.Index(limits, "pubsub"); i >= 0 && i+2 < len(limits) {
		least := int64(math.MaxInt64)
		for _, limit := range limits[i+1 : i+3] {
			if n := number(limit); n > 0 {
				least = min(least, n)
			}
		}
		all.Say(least < smallPushBuffer, "client-output-buffer-limit", driver.Slow, `CONFIG SET client-output-buffer-limit "pubsub 33554432 8388608 60"`,
			"the server cuts subscribers that are %d bytes behind: waiters lose the push that hands them the lock, and have to poll", least)
	}
}

func judgeCluster(f facts, all *findings.Table) {
	if f.cluster == nil {
		return
	}
	const slots = 16384
	assigned, failed := number(f.cluster["cluster_slots_assigned"]), number(f.cluster["cluster_slots_fail"])
	all.Say(assigned < slots, "cluster-slots", driver.Unsafe, "redis-cli --cluster fix HOST:PORT",
		"%d of %d slots are served by no primary: locks whose key falls there cannot be had", slots-assigned, slots)
	all.Say(failed > 0, "cluster-slots-failed", driver.Unsafe, "bring their primary back, or make its replica take over: CLUSTER FAILOVER FORCE",
		"%d slots belong to a primary that does not answer: locks whose key falls there cannot be had or renewed", failed)
	state := f.cluster["cluster_state"]
	all.Say(state != "" && state != "ok" && assigned == slots && failed == 0, "cluster-state", driver.Unsafe, "redis-cli --cluster check HOST:PORT",
		"the cluster says that its state is %q: it refuses requests", state)
	all.Say(f.config["cluster-require-full-coverage"] == "yes", "cluster-require-full-coverage", driver.Note, "CONFIG SET cluster-require-full-coverage no on every node",
		"one primary that is lost without a replica stops the locks of all the others, too (cluster-require-full-coverage yes)")
	all.Say(f.alone, "cluster-replicas", driver.Note, "redis-cli --cluster add-node HOST:PORT HOST:PORT --cluster-slave",
		"a primary has no replica: while it is away, the locks of its slots cannot be had or renewed")
}

func judgeSentinels(asked []sentinelFacts) (all findings.Table) {
	var away []string
	sentinels, quorum := int64(0), int64(0)
	for _, s := range asked {
		if s.master == nil {
			away = append(away, s.address)
			continue
		}
		sentinels = max(sentinels, number(s.master["num-other-sentinels"])+1)
		if q := number(s.master["quorum"]); quorum == 0 || q < quorum {
			quorum = q
		}
	}
	all.Say(away != nil, "sentinel-unreachable", driver.Unsafe, "start it, or correct its address or password in the URL",
		"no answer about the primary from Sentinel %s: while a majority is away no replica is promoted, and waiting has no end", strings.Join(away, ", "))
	if sentinels == 0 {
		return all
	}
	are := map[bool]string{true: "is one Sentinel", false: "are two Sentinels"}[sentinels == 1]
	all.Say(sentinels < 3, "sentinels", driver.Unsafe, "run three Sentinels on three machines",
		"there %s: when one is away there is no majority that could promote a replica, and waiting has no end", are)
	majority := sentinels/2 + 1
	mend := fmt.Sprintf("SENTINEL SET NAME quorum %d on every Sentinel", majority)
	all.Say(quorum > sentinels, "sentinel-quorum", driver.Unsafe, mend, "a quorum of %d cannot come about with %s: no replica is ever promoted", quorum, counted(int(sentinels), "Sentinel"))
	all.Say(quorum < majority, "sentinel-quorum", driver.Unsafe, mend,
		"%d of %d Sentinels are enough to call the primary dead: one that cannot reach it starts a needless fail-over, and each fail-over may lose locks", quorum, sentinels)
	return all
}

// counted is n and what: "1 key", "2 keys".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
