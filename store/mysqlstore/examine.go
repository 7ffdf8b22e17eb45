package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
)

// The oldest servers that skip locked rows.
const (
	oldestMariaDB = "10.6.0"
	oldestMySQL   = "8.0.1"
)

func isMariaDB(version string) bool { return strings.Contains(strings.ToLower(version), "mariadb") }

func versionProblem(version string) (driver.Finding, bool) {
	oldest, name := oldestMySQL, "MySQL"
	number := version
	if isMariaDB(version) {
		oldest, name = oldestMariaDB, "MariaDB"
		number = strings.TrimPrefix(number, "5.5.5-") // for clients that are afraid of two digits
	}
	if !older(number, oldest) {
		return driver.Finding{}, false
	}
	return driver.Finding{
		Name: "version", Severity: driver.Unsafe,
		What: fmt.Sprintf("the server is %s %s, which cannot skip rows that others have locked", name, number),
		Mend: "update it to MariaDB " + oldestMariaDB + " or MySQL " + oldestMySQL + " or newer",
	}, true
}

// older compares versions by the numbers at their beginning.
func older(version, than string) bool {
	a, b := strings.Split(version, "."), strings.Split(than, ".")
	for i := range b {
		if i >= len(a) {
			return false
		}
		digits := a[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		have, err := strconv.Atoi(digits)
		want, _ := strconv.Atoi(b[i]) // ours
		if err != nil || have != want {
			return err == nil && have < want
		}
	}
	return false
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

func (s *Store) examine(ctx context.Context) (all []driver.Finding, err error) {
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
		all = append(all, driver.Finding{
			Name: "engine", Severity: driver.Unsafe,
			What: fmt.Sprintf("table %s is kept by the engine %s, which has no transactions: two holders are possible, more than a limit allows, and operations that happen twice", table, engine),
			Mend: fmt.Sprintf("ALTER TABLE %s ENGINE=InnoDB", table),
		})
	}
	if err := rows.Err(); err != nil {
		return all, err
	}
	denied, err := s.denied(ctx)
	if err != nil {
		return all, err
	}
	for _, table := range denied {
		all = append(all, driver.Finding{
			Name: "privileges", Severity: driver.Unsafe,
			What: "this user may not read and write " + table,
			Mend: "GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO …",
		})
	}
	if s.remote {
		all = append(all, driver.Finding{
			Name: "tls", Severity: driver.Note,
			What: "the connection is not encrypted: an attacker on the way can take or break locks",
			Mend: "set up TLS on the server, then write tls=true or ca=FILE in the URL",
		})
	}
	return all, nil
}

// denied are our tables that the user may not read and write. Rights come from many
// places, so denied tries them, on no row.
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

// variables are the settings that matter, in lower case, and how many
// connections there are. Those that a server does not have are missing.
func (s *Store) variables(ctx context.Context) (map[string]string, error) {
	v := make(map[string]string)
	for _, q := range []string{
		`SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version','innodb_flush_log_at_trx_commit','innodb_doublewrite','innodb_deadlock_detect',
			'log_bin','sync_binlog','binlog_format','read_only','super_read_only','innodb_read_only','wsrep_on','max_connections','wait_timeout','max_allowed_packet',
			'transaction_isolation','tx_isolation')`,
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

// judge says what is wrong with the settings of a server.
func judge(v map[string]string) (all []driver.Finding) {
	add := func(wrong bool, f driver.Finding) {
		if wrong {
			all = append(all, f)
		}
	}
	has := func(name, value string) bool { return v[name] != "" && v[name] != value }
	f, old := versionProblem(v["version"])
	add(old, f)
	add(on(v["read_only"]) || on(v["super_read_only"]) || on(v["innodb_read_only"]), driver.Finding{
		Name: "read_only", Severity: driver.Unsafe,
		What: "the server is read-only, as replicas are: no lock can be taken on it, or only by users with special rights, whose locks the primary does not know",
		Mend: "name the primary in the URL",
	})
	add(on(v["wsrep_on"]), driver.Finding{
		Name: "galera", Severity: driver.Unsafe,
		What: "the server is a node of a Galera cluster: rows are locked on one node only, so users of different nodes disturb each other, and waits may end late",
		Mend: "have all users of the locks reach the same node, for example by a proxy with one writer",
	})
	add(has("innodb_flush_log_at_trx_commit", "1"), driver.Finding{
		Name: "innodb_flush_log_at_trx_commit", Severity: driver.Unsafe,
		What: "commits are not on disk when they are answered (innodb_flush_log_at_trx_commit = " + v["innodb_flush_log_at_trx_commit"] +
			"): after a crash the last second is forgotten, locks that are held are granted again, and tokens may repeat",
		Mend: "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration",
	})
	add(v["innodb_doublewrite"] == "off" || v["innodb_doublewrite"] == "0", driver.Finding{
		Name: "innodb_doublewrite", Severity: driver.Unsafe,
		What: "pages are written once (innodb_doublewrite is off): a loss of power may damage the tables",
		Mend: "innodb_doublewrite = ON in the server's configuration",
	})
	add(on(v["log_bin"]) && has("sync_binlog", "1"), driver.Finding{
		Name: "sync_binlog", Severity: driver.Unsafe,
		What: "the binary log is not on disk when a commit is answered (sync_binlog = " + v["sync_binlog"] +
			"): after a loss of power commits that are not in it are undone or missing on replicas, and locks that are held are granted again",
		Mend: "SET GLOBAL sync_binlog = 1, and in the server's configuration",
	})
	add(on(v["log_bin"]) && v["binlog_format"] == "statement", driver.Finding{
		Name: "binlog_format", Severity: driver.Unsafe,
		What: "binlog_format is STATEMENT: the server refuses the transactions of contended locks, and a replica decides again, by its own clock, what was granted",
		Mend: "SET GLOBAL binlog_format = 'ROW' (or 'MIXED'), and in the server's configuration",
	})
	add(v["innodb_deadlock_detect"] == "off", driver.Finding{
		Name: "innodb_deadlock_detect", Severity: driver.Slow,
		What: "innodb_deadlock_detect is off: a circle of transactions, of yours or after a lost connection, lasts until a timeout",
		Mend: "SET GLOBAL innodb_deadlock_detect = ON",
	})
	packet, err := strconv.Atoi(v["max_allowed_packet"])
	add(err == nil && packet < 1<<20, driver.Finding{
		Name: "max_allowed_packet", Severity: driver.Unsafe,
		What: fmt.Sprintf("the server takes at most %d bytes at a time (max_allowed_packet): renewing many locks at once, or some with long keys, may fail", packet),
		Mend: "SET GLOBAL max_allowed_packet = 16777216, and in the server's configuration",
	})
	connected, _ := strconv.Atoi(v["threads_connected"])
	limit, err := strconv.Atoi(v["max_connections"])
	add(err == nil && connected*10 >= limit*8, driver.Finding{
		Name: "max_connections", Severity: driver.Unsafe,
		What: fmt.Sprintf("%d of %d connections are taken: soon a holder that reconnects may not be let in, and loses its locks", connected, limit),
		Mend: "raise max_connections, or make pools smaller (connections=N in the URL)",
	})
	wait, err := strconv.Atoi(v["wait_timeout"])
	add(err == nil && wait <= int(idleFor.Seconds()), driver.Finding{
		Name: "wait_timeout", Severity: driver.Slow,
		What: fmt.Sprintf("the server ends connections that are unused for %d s: locks that are taken now and then pay for new ones", wait),
		Mend: "SET GLOBAL wait_timeout = 600, and in the server's configuration",
	})
	isolation := v["transaction_isolation"] + v["tx_isolation"]
	add(strings.Contains(isolation, "serializable"), driver.Finding{
		Name: "isolation", Severity: driver.Note,
		What: "transactions are SERIALIZABLE by default: those of Baton are READ COMMITTED all the same, but one of yours that reads its tables holds up the locks",
		Mend: "read the tables outside of transactions, or at READ COMMITTED",
	})
	return all
}

// elsewhere reports whether an address is not of this machine.
func elsewhere(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback())
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
