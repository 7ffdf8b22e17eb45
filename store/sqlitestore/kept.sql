-- Records of operations that are to happen once. Times are microseconds since
-- 1970, of the clock of the rate limits.
--
--     sqlite3 locks.db "SELECT CAST(k AS TEXT), state, owner, attempts, datetime(began / 1000000, 'unixepoch', 'localtime') FROM baton_record"

CREATE TABLE IF NOT EXISTS baton_record (
	k        BLOB PRIMARY KEY,
	state    TEXT    NOT NULL, -- 'begun', 'failed' (another attempt may begin), 'succeeded' or 'final'
	token    INTEGER NOT NULL, -- of the last attempt that began
	owner    TEXT    NOT NULL, -- of the last attempt that began
	attempts INTEGER NOT NULL, -- how many have begun
	began    INTEGER NOT NULL,
	finished INTEGER NOT NULL, -- when that attempt ended; 0: not yet
	until    INTEGER NOT NULL, -- when the record expires
	result   BLOB              -- what it left, or how it failed
) STRICT;

CREATE INDEX IF NOT EXISTS baton_record_until ON baton_record (until);

-- Overrides of limits, at most a thousand. Times are microseconds since 1970, of the
-- clock of the rate limits.
--
--     sqlite3 locks.db "SELECT CAST(k AS TEXT), n, period / 1e6, burst, datetime(until / 1000000, 'unixepoch', 'localtime') FROM baton_override"

CREATE TABLE IF NOT EXISTS baton_override (
	k      BLOB PRIMARY KEY, -- the key of the limit
	n      INTEGER NOT NULL,
	period INTEGER NOT NULL, -- n are allowed in that many microseconds; 0: in the period of the limit
	burst  INTEGER NOT NULL, -- of a token bucket; 0: it changes as the rate does
	until  INTEGER NOT NULL  -- when it ends
) STRICT;
