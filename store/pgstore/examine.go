package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
)

var (
	_ driver.Examiner = (*Store)(nil)
	_ driver.Clock    = (*Store)(nil)
)

// oldest is the first major version with all that the statements need.
const oldest = 12

// longTransaction is the age of a snapshot at which a lock in constant use is several
// times as slow.
const longTransaction = 20 * time.Second

// facts are the server's answers for Examine.
type facts struct {
	version                             int // 150018 is 15.18
	standby, readOnly                   bool
	fsync, fullPages, commit, isolation string
	syncNames                           string
	replicas, syncReplicas              int
	idleTimeout                         string
	autovacuum                          string
	unvacuumed, unlogged, denied        string // names of the store's tables
	keptUnlogged, keptDenied            bool
	connections, maxConnections         int
	idleHolders                         int           // sessions that are idle in a transaction and have locked rows of the store
	oldestTransaction                   time.Duration // of those in the database that keep old rows from being cleaned up
	homes                               []string      // schemas of the search path with the store's tables
	schema                              int
	schemaErr                           error
	host                                string
	encrypted, pooled                   bool
	poolSize                            int32
}

const factsSQL = `SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
	current_setting('default_transaction_read_only') = 'on',
	current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
	current_setting('default_transaction_isolation'), current_setting('synchronous_standby_names'),
	(SELECT count(*) FROM pg_stat_replication)::int,
	(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))::int,
	current_setting('idle_in_transaction_session_timeout'), current_setting('autovacuum'),
	coalesce((SELECT string_agg(relname, ' and ' ORDER BY relname) FROM pg_class WHERE oid = ANY (ours || limits)
		AND reloptions::text ~ 'autovacuum_enabled=(false|off|no|0)'), ''),
	coalesce((SELECT string_agg(relname, ' and ' ORDER BY relname) FROM pg_class WHERE oid = ANY (ours) AND relpersistence <> 'p'), ''),
	coalesce((SELECT relpersistence <> 'p' FROM pg_class WHERE oid = kept), false),
	coalesce(NOT (has_table_privilege(kept, 'SELECT') AND has_table_privilege(kept, 'INSERT')
		AND has_table_privilege(kept, 'UPDATE') AND has_table_privilege(kept, 'DELETE')), false),
	coalesce((SELECT string_agg(relname, ' and ' ORDER BY relname) FROM pg_class WHERE oid = ANY (ours || limits)
		AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
			AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))), ''),
	(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int,
	current_setting('max_connections')::int,
	(SELECT count(DISTINCT a.pid) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
		WHERE a.state LIKE 'idle in transaction%' AND a.state_change < clock_timestamp() - interval '1 second'
		AND l.relation = ANY (ours) AND l.mode IN ('RowShareLock', 'RowExclusiveLock'))::int,
	coalesce((SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)), 0)::float8,
	ARRAY (SELECT nspname::text FROM unnest(current_schemas(false)) WITH ORDINALITY AS p (nspname, i)
		WHERE EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 'baton_lock' AND n.nspname = p.nspname) ORDER BY i)
	FROM (SELECT array_remove(ARRAY[to_regclass('baton_lock')::oid, to_regclass('baton_claim')::oid], NULL) AS ours,
		array_remove(ARRAY[to_regclass('baton_limit')::oid, to_regclass('baton_limit_id')::oid], NULL) AS limits,
		to_regclass('baton_kept')::oid AS kept) AS o`

// Examine implements driver.Examiner. It sees other users' sessions only as a member of
// pg_read_all_stats.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	f, err := s.facts(ctx)
	if err != nil {
		return nil, err
	}
	return judge(f), nil
}

func (s *Store) facts(ctx context.Context) (f facts, err error) {
	var oldestSeconds float64
	err = s.row(ctx, factsSQL, nil, &f.version, &f.standby, &f.readOnly, &f.fsync, &f.fullPages, &f.commit,
		&f.isolation, &f.syncNames, &f.replicas, &f.syncReplicas, &f.idleTimeout, &f.autovacuum, &f.unvacuumed,
		&f.unlogged, &f.keptUnlogged, &f.keptDenied, &f.denied, &f.connections, &f.maxConnections, &f.idleHolders, &oldestSeconds, &f.homes)
	if err != nil {
		return f, err
	}
	f.oldestTransaction = time.Duration(oldestSeconds * float64(time.Second))
	f.schema, f.schemaErr = schemaVersion(ctx, s.pool)
	config := s.pool.Config()
	f.host, f.encrypted = config.ConnConfig.Host, config.ConnConfig.TLSConfig != nil
	f.pooled, f.poolSize = s.pooled, config.MaxConns
	return f, nil
}

// ServerTime implements driver.Clock.
func (s *Store) ServerTime(ctx context.Context) (at time.Time, err error) {
	err = s.row(ctx, `SELECT clock_timestamp()`, nil, &at)
	return at, err
}

// judge returns the findings about the facts.
func judge(f facts) []driver.Finding {
	const unsafe, slow, note = driver.Unsafe, driver.Slow, driver.Note
	var all findings.Table
	all.Say(f.version < oldest*10000, "server-version", unsafe, fmt.Sprintf("upgrade the server to version %d or newer", oldest),
		"the server is version %d.%d, and nothing was tested below %d", f.version/10000, f.version%10000, oldest)

	wrong := f.schemaErr != nil && errors.As(f.schemaErr, new(*SchemaError)) || f.schemaErr == nil && f.schema == 0
	all.Say(f.schemaErr != nil && !wrong, "schema", unsafe, "baton schema apply", "the version of the tables could not be asked: %v", f.schemaErr)
	all.Say(wrong, "schema", unsafe, "baton schema apply", "Baton's tables are missing, so that no lock can be taken and no limit asked")
	all.Say(f.schemaErr == nil && !wrong && f.schema < SchemaVersion, "schema", unsafe, "baton schema apply",
		"the tables are of version %d, this program needs %d", f.schema, SchemaVersion)
	all.Say(len(f.homes) > 1, "search-path", unsafe, "find out which programs use which, then have all use one search path, and drop the other tables while no lock is held",
		"there are %d sets of tables in the search path, in the schemas %s: this program uses the first, and one whose path leads to another is granted the same locks", len(f.homes), strings.Join(f.homes, ", "))
	if f.standby {
		all = append(all, standbyFound)
	}
	all.Say(!f.standby && f.readOnly, "read-only", unsafe, "ALTER ROLE … SET default_transaction_read_only = off", "transactions are read-only by default, so that no lock can be taken")
	all.Say(f.fsync != "on", "fsync", unsafe, "fsync = on in postgresql.conf",
		"the server does not wait for the disk (fsync = %s): a loss of power can take back grants, and damage the database", f.fsync)
	all.Say(f.fullPages != "on", "full-page-writes", unsafe, "full_page_writes = on in postgresql.conf",
		"the server does not keep whole pages (full_page_writes = %s): a loss of power can damage the tables of the locks", f.fullPages)
	all.Say(f.unlogged != "", "unlogged", unsafe, "ALTER TABLE … SET LOGGED", "%s is unlogged: a crash of the server empties it, and every lock with it", f.unlogged)
	all.Say(f.keptUnlogged, "unlogged", unsafe, "ALTER TABLE baton_kept SET LOGGED",
		"baton_kept is unlogged: a crash of the server empties it, and operations that have happened happen again")

	all.Say(f.denied != "", "privileges", unsafe, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+strings.ReplaceAll(f.denied, " and ", ", ")+" TO …",
		"this user may not read and write %s", f.denied)
	all.Say(f.keptDenied && f.denied == "", "privileges-records", note, "GRANT SELECT, INSERT, UPDATE, DELETE ON baton_kept TO …",
		"this user may not read and write baton_kept, so that operations that are to happen once cannot be recorded, and overrides of limits are not obeyed")

	asynchronous, waits := f.replicas > 0 && f.syncReplicas == 0, f.commit != "local" && f.commit != "off"
	all.Say(asynchronous, "asynchronous-standby", unsafe, "set synchronous_standby_names, or check tokens where it matters",
		"no standby is synchronous: if one of the %d is promoted, the locks of the last moments are granted again", f.replicas)
	all.Say(!asynchronous && !waits && f.syncNames != "", "synchronous-commit", unsafe, "ALTER ROLE … SET synchronous_commit = on",
		"there are synchronous standbys, but commits of this user do not wait for them (synchronous_commit = %s)", f.commit)
	all.Say(!asynchronous && f.syncNames == "" && f.commit == "off", "synchronous-commit", note, "",
		"commits of this user do not wait for the disk; those that a holder relies on do so all the same")

	all.Say(f.idleHolders > 0, "idle-in-transaction", unsafe, "end them with pg_terminate_backend, and set idle_in_transaction_session_timeout",
		"%d sessions have locked rows of the locks and are idle in their transaction: no other process is granted these locks", f.idleHolders)
	all.Say(f.idleTimeout == "0", "idle-timeout", note, "ALTER ROLE … SET idle_in_transaction_session_timeout = '30s'",
		"a program that is stopped in the middle of a transaction keeps what it has locked for ever")
	all.Say(f.isolation != "read committed", "isolation", slow, "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
		"transactions are %s by default, so that each request has to say otherwise", f.isolation)
	all.Say(f.autovacuum != "on", "autovacuum", slow, "autovacuum = on in postgresql.conf", "nothing is cleaned up (autovacuum = %s): the tables grow, and slow down", f.autovacuum)
	all.Say(f.autovacuum == "on" && f.unvacuumed != "", "autovacuum", slow, "ALTER TABLE … RESET (autovacuum_enabled)",
		"%s is not cleaned up (autovacuum_enabled): it grows, and slows down", f.unvacuumed)
	all.Say(f.oldestTransaction > longTransaction, "long-transaction", slow, "end it, or bound it by idle_in_transaction_session_timeout; where dumps and reports last, keep the locks in a database of their own",
		"a transaction, such as a dump, has been open for %v: what is written meanwhile cannot be cleaned up, and locks that are used much become slower and slower while it lasts", f.oldestTransaction.Round(time.Second))
	all.Say(f.pooled, "pooler", slow, "connect to the server directly, if it can take the connections", "a pooler is between the program and the server: statements are not prepared, and waiters poll")
	all.Say(f.poolSize < 2, "pool-size", slow, "MaxConns of at least 2 in the pool's configuration", "the pool has one connection: each request waits for the one before")
	all.Say(10*f.connections > 9*f.maxConnections, "connections", slow, "raise max_connections, or put a pooler in between",
		"%d of %d connections of the server are taken: a program that starts may get none", f.connections, f.maxConnections)
	all.Say(!f.encrypted && !findings.Local(f.host), "plaintext", note, "sslmode=verify-full", "the connection need not be encrypted: the IDs of locks can be read on the way, and used")
	return all
}

var standbyFound = driver.Finding{
	Name: "standby", Severity: driver.Unsafe, What: "the server is a standby: it grants nothing, and what it shows is old",
	Mend: "connect to the primary, or name all servers in the URL",
}
