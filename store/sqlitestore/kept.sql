-- Records of operations that are to happen once, and overrides of limits: a line of JSON
-- and, behind it, the result of the operation. Times are microseconds since 1970, of the
-- clock of the rate limits.
--
--     sqlite3 locks.db "SELECT CAST(k AS TEXT), CAST(text AS TEXT), datetime(until / 1000000, 'unixepoch', 'localtime') FROM baton_kept"

CREATE TABLE IF NOT EXISTS baton_kept (
	k     BLOB PRIMARY KEY, -- records/ or overrides/, and the key
	text  BLOB    NOT NULL,
	until INTEGER NOT NULL  -- when it expires
) STRICT;

CREATE INDEX IF NOT EXISTS baton_kept_until ON baton_kept (until);
