-- The highest fencing token that each resource has seen. To look at it:
--
--   SELECT convert_from(resource, 'UTF8'), token, holder FROM baton_guard;

CREATE TABLE IF NOT EXISTS baton_guard (
	resource bytea  PRIMARY KEY, -- compared as bytes
	token    bigint NOT NULL,
	holder   text COLLATE "C" NOT NULL -- who showed it
) WITH (fillfactor = 50);
