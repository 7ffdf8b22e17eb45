package sqlitestore

import (
	"context"
	"database/sql"
	"time"
)

// The statements of the writer, prepared once. "LIMIT +?" hides the number from SQLite's
// planner, which would otherwise prepare the statement again at each run.
const (
	stBegin = iota
	stCommit
	stRollback
	stSize
	stBoot
	stFastAcquire
	stFastRelease
	stLockKey
	stFloor
	stInsertKey
	stUpdateKey
	stClaims
	stClaimByID
	stInsertClaim
	stUpdateClaim
	stRenameClaim
	stDeleteClaim
	stDeleteDead
	stCountWaiting
	stRenewClaims
	stRenewLocks
	stSweepPage
	stSweepBusy
	stSweepFloor
	stSweep
	stBooted
	stSetBooted
	stLimit
	stSaveLimit
	stDropLimit
	stLimitID
	stSaveLimitID
	stSweepLimitPage
	stSweepLimit
	stSweepLimitID
	stText
	stSaveText
	stDropText
	stSweepTexts
	numStatements
)

const (
	keyColumns   = `last, busy, id, token, weight, owner, node, since, ends`
	claimColumns = `seq, id, node, owner, weight, capacity, held, ttl, since, ends`
)

var statements = [numStatements]string{
	stBegin:    `BEGIN IMMEDIATE`,
	stCommit:   `COMMIT`,
	stRollback: `ROLLBACK`,
	stSize:     `SELECT page_count * page_size FROM pragma_page_count, pragma_page_size`,
	stBoot:     `SELECT value FROM baton_meta WHERE name = 'boot'`,

	// ?1 key, ?2 now, ?3 end, ?4 wall clock, ?5 id, ?6 owner, ?7 node. Only if the token
	// is the wall clock time, so that no value has to be returned.
	stFastAcquire: `UPDATE baton_lock SET last = ?4, token = ?4, id = ?5, owner = ?6, node = ?7,
		weight = 1 << 40, since = ?2, ends = ?3
		WHERE k = ?1 AND NOT busy AND last < ?4 AND (id = '' OR ends <= ?2)`,

	// ?1 key, ?2 now, ?3 id.
	stFastRelease: `UPDATE baton_lock SET id = '', owner = '', node = '', ends = ?2
		WHERE k = ?1 AND id = ?3 AND ends > ?2 AND NOT busy`,

	// BEGIN IMMEDIATE excludes other writers, so a read row is locked.
	stLockKey:   `SELECT ` + keyColumns + ` FROM baton_lock WHERE k = ?1`,
	stFloor:     `SELECT value FROM baton_meta WHERE name = 'high'`,
	stInsertKey: `INSERT INTO baton_lock (k, ` + keyColumns + `) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
	stUpdateKey: `UPDATE baton_lock SET (` + keyColumns + `) = (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) WHERE k = ?1`,

	stClaims:      `SELECT ` + claimColumns + ` FROM baton_claim WHERE k = ?1 AND seq > ?2 ORDER BY seq LIMIT +?3`,
	stClaimByID:   `SELECT ` + claimColumns + ` FROM baton_claim WHERE k = ?1 AND id = ?2 ORDER BY seq DESC LIMIT 1`,
	stInsertClaim: `INSERT INTO baton_claim (k, ` + claimColumns + `) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)`,
	stUpdateClaim: `UPDATE baton_claim SET held = ?3, weight = ?4, ttl = ?5, since = ?6,
		ends = ?7 WHERE k = ?1 AND seq = ?2`,
	stRenameClaim:  `UPDATE baton_claim SET owner = ?3 WHERE k = ?1 AND seq = ?2`,
	stDeleteClaim:  `DELETE FROM baton_claim WHERE k = ?1 AND seq = ?2`,
	stDeleteDead:   `DELETE FROM baton_claim WHERE k = ?1 AND seq = ?2 AND ends <= ?3`,
	stCountWaiting: `SELECT count(*) FROM baton_claim WHERE k = ?1 AND NOT held AND ends > ?2`,

	// ?1 the rows as JSON: [id, ticket, key], ?2 now, ?3 end of a holder, ?4 end of a
	// waiter, ?5 ttl. The clock was read after other writers were excluded, so the new
	// end is right even if it is before the old one. The JSON must come first, and CROSS
	// JOIN is not allowed here: nothing else gives the primary key its value.
	stRenewClaims: `UPDATE baton_claim AS c SET ends = iif(c.held, ?3, ?4), ttl = ?5
		FROM json_each(?1) AS j
		WHERE c.k = CAST(j.value ->> 2 AS BLOB) AND c.seq = j.value ->> 1 AND c.id = j.value ->> 0 AND c.ends > ?2
		RETURNING k, id, seq, held`,
	stRenewLocks: `UPDATE baton_lock AS l SET ends = ?3
		FROM json_each(?1) AS j
		WHERE l.k = CAST(j.value ->> 2 AS BLOB) AND l.id = j.value ->> 0 AND l.ends > ?2
		RETURNING k, id, token`,

	// A page of the sweep: ?1 the key before it, ?2 the number of keys, ?3 the time since
	// which they must be unused.
	stSweepPage: `SELECT max(k), count(*), ifnull(sum(busy AND ends <= ?3), 0), ifnull(sum(NOT busy AND ends <= ?3), 0)
		FROM (SELECT k, busy, ends FROM baton_lock WHERE k > ?1 ORDER BY k LIMIT +?2)`,
	stSweepBusy: `SELECT k FROM baton_lock WHERE k > ?1 AND k <= ?2 AND busy AND ends <= ?3`,
	stSweepFloor: `UPDATE baton_meta SET value = max(value, (SELECT ifnull(max(last), 0) FROM baton_lock
		WHERE k > ?1 AND k <= ?2 AND NOT busy AND ends <= ?3)) WHERE name = 'high'`,
	stSweep: `DELETE FROM baton_lock WHERE k > ?1 AND k <= ?2 AND NOT busy AND ends <= ?3`,

	stBooted:    `SELECT value FROM baton_meta WHERE name = 'booted'`,
	stSetBooted: `UPDATE baton_meta SET value = ?1 WHERE name = 'booted'`,

	// Limits. ?1 key, ?2 the present.
	stLimit: `SELECT state FROM baton_limit WHERE k = ?1 AND ends > ?2`,
	stSaveLimit: `INSERT INTO baton_limit (k, state, ends) VALUES (?1, ?2, ?3)
		ON CONFLICT (k) DO UPDATE SET state = excluded.state, ends = excluded.ends`,
	stDropLimit: `DELETE FROM baton_limit WHERE k = ?1`,
	stLimitID:   `SELECT at, wait FROM baton_limit_id WHERE k = ?1 AND id = ?2 AND ends > ?3`,
	stSaveLimitID: `INSERT INTO baton_limit_id (k, id, at, wait, ends) VALUES (?1, ?2, ?3, ?4, ?5)
		ON CONFLICT (k, id) DO UPDATE SET at = excluded.at, wait = excluded.wait, ends = excluded.ends`,

	// ?1 the key before the page, ?2 the number of keys, ?3 the present.
	stSweepLimitPage: `SELECT max(k), count(*), ifnull(sum(ends <= ?3), 0)
		FROM (SELECT k, ends FROM baton_limit WHERE k > ?1 ORDER BY k LIMIT +?2)`,
	stSweepLimit: `DELETE FROM baton_limit WHERE k > ?1 AND k <= ?2 AND ends <= ?3`,
	stSweepLimitID: `DELETE FROM baton_limit_id WHERE (k, id) IN
		(SELECT k, id FROM baton_limit_id WHERE ends <= ?1 ORDER BY ends LIMIT +?2)`,

	// Records and overrides.
	stText: `SELECT text, until FROM baton_kept WHERE k = ?1`,
	stSaveText: `INSERT INTO baton_kept (k, text, until) VALUES (?1, ?2, ?3)
		ON CONFLICT (k) DO UPDATE SET (text, until) = (?2, ?3)`,
	stDropText: `DELETE FROM baton_kept WHERE k = ?1`,

	// A few expired texts, ?1 the present: more than are written.
	stSweepTexts: `DELETE FROM baton_kept WHERE k IN (SELECT k FROM baton_kept WHERE until <= ?1 ORDER BY until LIMIT 4)`,
}

// begin starts a transaction that may write at once: a transaction that begins with a
// read may be refused later. begin gives up when no request waits for it any more.
func (s *Store) begin() error {
	s.limits.booted = 0
	s.keepRoom()
	if err := s.sync(true); err != nil {
		return err
	}
	for {
		err := s.exec(stBegin)
		if !isBusy(err) || !s.waiting() {
			return err
		}
		time.Sleep(busyPause)
	}
}

// sync sets whether the next commit waits for the disk. It need not if only a release
// would be lost: the kernel has the release, so it survives the end of any process; a
// crash of the kernel ends all locks anyway. The next commit that waits brings it to the
// disk, too. sync is called between transactions.
func (s *Store) sync(wait bool) error {
	if wait != s.lazy {
		return nil
	}
	level := "NORMAL"
	if wait {
		level = "FULL"
	}
	// Not prepared: SQLite acts when it parses this statement.
	_, err := s.conn.ExecContext(context.Background(), "PRAGMA synchronous = "+level)
	if err == nil {
		s.lazy = !wait
	}
	return err
}

func (s *Store) rollback() {
	s.exec(stRollback) // fails if SQLite has undone the transaction already
}

func (s *Store) exec(n int, args ...any) error {
	st, err := s.statement(n)
	if err == nil {
		_, err = st.Exec(args...)
	}
	return err
}

// statement prepares a statement at its first use: a command uses few. Like the
// connection it is for one goroutine at a time.
func (s *Store) statement(n int) (st *sql.Stmt, err error) {
	if s.stmt[n] == nil {
		s.stmt[n], err = s.conn.PrepareContext(context.Background(), statements[n])
	}
	return s.stmt[n], err
}

func (s *Store) row(n int, args ...any) *sql.Row {
	st, err := s.statement(n)
	if err != nil { // the row returns err, too
		return s.conn.QueryRowContext(context.Background(), statements[n], args...)
	}
	return st.QueryRow(args...)
}
