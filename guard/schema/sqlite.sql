-- The highest fencing token that each resource has seen. To look at it:
--
--   SELECT CAST(resource AS TEXT), token, holder FROM baton_guard;

CREATE TABLE IF NOT EXISTS baton_guard (
	resource BLOB PRIMARY KEY, -- compared as bytes
	token    INTEGER NOT NULL,
	holder   TEXT    NOT NULL  -- who showed it
) STRICT, WITHOUT ROWID;
