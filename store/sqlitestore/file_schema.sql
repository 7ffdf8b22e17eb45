-- Tables of the lock store, version 1.
--
-- The names carry the prefix baton_ because the file may be an application's
-- own database. Times are microseconds since the machine was booted
-- (CLOCK_BOOTTIME), so that a wall clock that is set cannot end or prolong a
-- lock; what is in the file from an earlier boot is void. The view baton_show
-- shows everything with names and wall clock times:
--
--     sqlite3 locks.db 'SELECT * FROM baton_show'
--
-- k is a BLOB so that keys are compared as bytes.

CREATE TABLE IF NOT EXISTS baton_meta (
	name  TEXT PRIMARY KEY,
	value ANY NOT NULL      -- 'schema', 'boot': which boot the times belong to, 'booted': when that was,
	                        -- 'high': no ticket up to this one is drawn again, even for a key whose row was swept
) STRICT, WITHOUT ROWID;

-- One row per key: the counter, and the holder, if it was granted without queueing.
CREATE TABLE IF NOT EXISTS baton_lock (
	k      BLOB PRIMARY KEY,
	last   INTEGER NOT NULL, -- the highest ticket drawn
	busy   INTEGER NOT NULL, -- 1: baton_claim may have rows of this key
	id     TEXT    NOT NULL, -- of the holder, '' is none
	token  INTEGER NOT NULL,
	weight INTEGER NOT NULL, -- 1 if the holder was turned into a reader, else 2^40
	owner  TEXT    NOT NULL,
	node   TEXT    NOT NULL, -- the socket in FILE-wake that hints go to
	since  INTEGER NOT NULL,
	ends   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Waiters, holders that were granted out of the queue, and shared holders.
CREATE TABLE IF NOT EXISTS baton_claim (
	k        BLOB    NOT NULL,
	seq      INTEGER NOT NULL, -- the ticket, and the token when held
	id       TEXT    NOT NULL,
	node     TEXT    NOT NULL,
	owner    TEXT    NOT NULL,
	weight   INTEGER NOT NULL, -- 2^40 of 2^40 is exclusive, 1 of 2^40 a reader
	capacity INTEGER NOT NULL,
	held     INTEGER NOT NULL,
	ttl      INTEGER NOT NULL,
	since    INTEGER NOT NULL,
	ends     INTEGER NOT NULL,
	PRIMARY KEY (k, seq)
) STRICT, WITHOUT ROWID;

CREATE VIEW IF NOT EXISTS baton_show AS
WITH
	boot(at) AS (SELECT value FROM baton_meta WHERE name = 'booted'),
	rows(k, state, token, weight, capacity, owner, since, ends) AS (
		SELECT k, 'held', token, weight, 1 << 40, owner, since, ends FROM baton_lock WHERE id <> ''
		UNION ALL
		SELECT k, iif(held, 'held', 'waiting'), seq, weight, capacity, owner, since, ends FROM baton_claim
	)
SELECT
	CAST(k AS TEXT) AS key,
	state,
	CASE weight WHEN capacity THEN iif(capacity = 1 << 40, 'exclusive', weight || ' of ' || capacity)
		ELSE iif(capacity = 1 << 40, 'shared', weight || ' of ' || capacity) END AS kind,
	owner,
	token AS ticket,
	datetime((boot.at + since) / 1000000, 'unixepoch', 'localtime') AS since,
	datetime((boot.at + ends) / 1000000, 'unixepoch', 'localtime') AS ends
FROM rows, boot
ORDER BY rows.k, token;
