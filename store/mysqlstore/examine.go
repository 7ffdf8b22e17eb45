package mysqlstore

import (
	"context"
	"database/sql"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
)

func isMariaDB(version string) bool { return strings.Contains(strings.ToLower(version), "mariadb") }

// judgeVersion finds a server that cannot skip locked rows.
func judgeVersion(version string) (all findings.Table) {
	number := strings.TrimPrefix(version, "5.5.5-") // MariaDB's prefix for old clients
	old := findings.Older(version, 8, 0, 1)
	if isMariaDB(version) {
		old = findings.Older(number, 10, 6, 0)
	}
	all.Say(old, "version", driver.Unsafe, "update it to MariaDB 10.6.0 or MySQL 8.0.1 or newer", "the server is version %s, which cannot skip rows that others have locked", number)
	return all
}

func schemaFinding(wrong []string) driver.Finding {
	return driver.Finding{
		Name: "schema", Severity: driver.Unsafe,
		What: "the tables are not as this version needs them: " + strings.Join(wrong, "; "),
		Mend: "drop or rename what is wrong while no lock is held, then run baton schema apply",
	}
}

// Examine implements driver.Examiner.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	all, err := s.examine(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return all, ctx.Err()
		}
		return all, failure(err, false)
	}
	return all, nil
}

func (s *Store) examine(ctx context.Context) (all findings.Table, err error) {
	v, err := s.variables(ctx)
	if err != nil {
		return nil, err
	}
	all = judge(v)

	wrong, err := schemaProblems(ctx, s.single)
	if err != nil {
		return all, err
	}
	if len(wrong) > 0 {
		all = append(all, schemaFinding(wrong))
	}
	rows, err := s.single.QueryContext(ctx, `SELECT TABLE_NAME, IFNULL(ENGINE,'none') FROM information_schema.TABLES
		WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME IN `+tableList+` AND IFNULL(ENGINE,'none')<>'InnoDB' ORDER BY TABLE_NAME`)
	if err != nil {
		return all, err
	}
	defer rows.Close()
	for rows.Next() {
		var table, engine string
		if err := rows.Scan(&table, &engine); err != nil {
			return all, err
		}
		all.Say(true, "engine", driver.Unsafe, "ALTER TABLE "+table+" ENGINE=InnoDB",
			"table %s is kept by the engine %s, which has no transactions: two holders are possible, more than a limit allows, and operations that happen twice", table, engine)
	}
	if err := rows.Err(); err != nil {
		return all, err
	}
	denied, err := s.denied(ctx)
	if err != nil {
		return all, err
	}
	for _, table := range denied {
		all.Say(true, "privileges", driver.Unsafe, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+table+" TO …", "this user may not read and write %s", table)
	}
	all.Say(s.remote, "tls", driver.Note, "set up TLS on the server, then write tls=true or ca=FILE in the URL",
		"the connection is not encrypted: an attacker on the way can take or break locks")
	return all, nil
}

// denied are the store's tables that the user may not read and write. Rights come from
// many places, so denied tries them, on no row.
func (s *Store) denied(ctx context.Context) (denied []string, err error) {
	for _, table := range tables {
		for _, try := range []string{"INSERT INTO t SELECT * FROM t WHERE FALSE", "UPDATE t SET k=k WHERE FALSE", "DELETE FROM t WHERE FALSE"} {
			_, err := s.single.ExecContext(ctx, strings.ReplaceAll(try, " t", " "+table))
			if n := number(err); n == erNoRight {
				denied = append(denied, table)
				break
			} else if n == 0 && err != nil { // other errors belong to other findings
				return denied, err
			}
		}
	}
	return denied, nil
}

// variables are the relevant settings, in lower case, and the number of connections.
// Settings that a server does not have are missing.
func (s *Store) variables(ctx context.Context) (map[string]string, error) {
	v := make(map[string]string)
	for _, q := range []string{
		`SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version','innodb_flush_log_at_trx_commit','innodb_doublewrite','innodb_deadlock_detect',
			'log_bin','sync_binlog','binlog_format','read_only','super_read_only','innodb_read_only','wsrep_on','max_connections','wait_timeout','max_allowed_packet',
			'transaction_isolation','tx_isolation','group_replication_group_name','group_replication_single_primary_mode')`,
		`SHOW GLOBAL STATUS LIKE 'Threads_connected'`,
	} {
		rows, err := s.single.QueryContext(ctx, q)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var name, value sql.NullString
			if err := rows.Scan(&name, &value); err != nil {
				rows.Close()
				return nil, err
			}
			v[strings.ToLower(name.String)] = strings.ToLower(value.String)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
		rows.Close()
	}
	return v, nil
}

func on(value string) bool { return value == "on" || value == "1" }

// judge returns the findings about the settings.
func judge(v map[string]string) findings.Table {
	const unsafe, slow, note = driver.Unsafe, driver.Slow, driver.Note
	all := judgeVersion(v["version"])
	has := func(name, value string) bool { return v[name] != "" && v[name] != value }
	number := func(name string, missing float64) float64 {
		if n, err := strconv.ParseFloat(v[name], 64); err == nil {
			return n
		}
		return missing
	}
	all.Say(on(v["read_only"]) || on(v["super_read_only"]) || on(v["innodb_read_only"]), "read_only", unsafe, "name the primary in the URL",
		"the server is read-only, as replicas are: no lock can be taken on it, or only by users with special rights, whose locks the primary does not know")
	all.Say(on(v["wsrep_on"]), "galera", unsafe, "have all users of the locks reach the same node, for example by a proxy with one writer",
		"the server is a node of a Galera cluster: rows are locked on one node only, so users of different nodes disturb each other, and waits may end late")
	all.Say(v["group_replication_group_name"] != "" && v["group_replication_single_primary_mode"] == "off", "group_replication", unsafe,
		"have all users of the locks reach the same member, or SELECT group_replication_switch_to_single_primary_mode()",
		"the server is in a group with several primaries: rows are locked on one member only, so users of different members disturb each other, and their commits are undone")
	all.Say(has("innodb_flush_log_at_trx_commit", "1"), "innodb_flush_log_at_trx_commit", unsafe, "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration",
		"commits are not on disk when they are answered (innodb_flush_log_at_trx_commit = %s): after a crash the last second is forgotten, locks that are held are granted again, and tokens may repeat", v["innodb_flush_log_at_trx_commit"])
	all.Say(v["innodb_doublewrite"] == "off" || v["innodb_doublewrite"] == "0", "innodb_doublewrite", unsafe, "innodb_doublewrite = ON in the server's configuration",
		"pages are written once (innodb_doublewrite is off): a loss of power may damage the tables")
	all.Say(on(v["log_bin"]) && has("sync_binlog", "1"), "sync_binlog", unsafe, "SET GLOBAL sync_binlog = 1, and in the server's configuration",
		"the binary log is not on disk when a commit is answered (sync_binlog = %s): after a loss of power commits that are not in it are undone or missing on replicas, and locks that are held are granted again", v["sync_binlog"])
	all.Say(on(v["log_bin"]) && v["binlog_format"] == "statement", "binlog_format", unsafe, "SET GLOBAL binlog_format = 'ROW' (or 'MIXED'), and in the server's configuration",
		"binlog_format is STATEMENT: the server refuses the transactions of contended locks, and a replica decides again, by its own clock, what was granted")
	all.Say(v["innodb_deadlock_detect"] == "off", "innodb_deadlock_detect", slow, "SET GLOBAL innodb_deadlock_detect = ON",
		"innodb_deadlock_detect is off: a circle of transactions, of yours or after a lost connection, lasts until a timeout")
	all.Say(number("max_allowed_packet", 1<<20) < 1<<20, "max_allowed_packet", unsafe, "SET GLOBAL max_allowed_packet = 16777216, and in the server's configuration",
		"the server takes at most %s bytes at a time (max_allowed_packet): renewing many locks at once, or some with long keys, may fail", v["max_allowed_packet"])
	all.Say(number("threads_connected", 0) >= 0.8*number("max_connections", math.Inf(1)), "max_connections", unsafe, "raise max_connections, or make pools smaller (connections=N in the URL)",
		"%s of %s connections are taken: soon a holder that reconnects may not be let in, and loses its locks", v["threads_connected"], v["max_connections"])
	all.Say(number("wait_timeout", math.Inf(1)) <= idleFor.Seconds(), "wait_timeout", slow, "SET GLOBAL wait_timeout = 600, and in the server's configuration",
		"the server ends connections that are unused for %s s: locks that are taken now and then pay for new ones", v["wait_timeout"])
	all.Say(strings.Contains(v["transaction_isolation"]+v["tx_isolation"], "serializable"), "isolation", note, "read the tables outside of transactions, or at READ COMMITTED",
		"transactions are SERIALIZABLE by default: those of Baton are READ COMMITTED all the same, but one of yours that reads its tables holds up the locks")
	return all
}

// ServerTime implements driver.Clock.
func (s *Store) ServerTime(ctx context.Context) (time.Time, error) {
	if err := s.ready(ctx); err != nil {
		return time.Time{}, err
	}
	var us int64
	if err := s.single.QueryRowContext(ctx, "SELECT "+micros).Scan(&us); err != nil {
		if ctx.Err() != nil {
			return time.Time{}, ctx.Err()
		}
		return time.Time{}, failure(err, false)
	}
	return time.UnixMicro(us), nil
}
