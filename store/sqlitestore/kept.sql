-- What is kept of operations that are to happen once (folder 'records'), and the
-- overrides of limits ('overrides'), each as a text: a line of JSON and, behind it, the
-- result of an operation. Times are microseconds since 1970, of the clock of the rate
-- limits.
--
--     sqlite3 locks.db "SELECT folder, CAST(k AS TEXT), CAST(text AS TEXT), datetime(until / 1000000, 'unixepoch', 'localtime') FROM baton_kept"

CREATE TABLE IF NOT EXISTS baton_kept (
	folder TEXT    NOT NULL,
	k      BLOB    NOT NULL,
	text   BLOB    NOT NULL,
	until  INTEGER NOT NULL, -- when it expires
	PRIMARY KEY (folder, k)
) STRICT;

CREATE INDEX IF NOT EXISTS baton_kept_until ON baton_kept (until);
