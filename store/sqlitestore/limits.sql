-- Tables of the rate limits. Times are microseconds since 1970, so that what was
-- taken before a reboot still counts after it: of a clock that began with what
-- the wall clock said when the machine was booted, and cannot be set.
--
--     sqlite3 locks.db "SELECT CAST(k AS TEXT), state, datetime(ends / 1000000, 'unixepoch', 'localtime') FROM baton_limit"

CREATE TABLE IF NOT EXISTS baton_limit (
	k     BLOB PRIMARY KEY,
	state TEXT    NOT NULL, -- numbers: 1, limit, then until when how many count | 2, period, which, limit, count before, count
	                        -- | 3, when the bucket is full again, fraction, tokens, period, tokens beyond the burst
	ends  INTEGER NOT NULL  -- when the state expires
) STRICT, WITHOUT ROWID;

-- Requests that were allowed and may be repeated.
CREATE TABLE IF NOT EXISTS baton_limit_id (
	k    BLOB    NOT NULL, -- the first key of the request
	id   TEXT    NOT NULL,
	at   INTEGER NOT NULL, -- when it was allowed
	wait INTEGER NOT NULL, -- from then to its turn
	ends INTEGER NOT NULL,
	PRIMARY KEY (k, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS baton_limit_id_ends ON baton_limit_id (ends);
