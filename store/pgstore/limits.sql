-- The tables of rate limits.
--
-- baton_limit has one row for each key of which something was taken. state is numbers,
-- as package rate says: 1 is a window (2^51 and the longest life, and pairs
-- of a moment and what counts until then), 2 an estimate (period, number of the
-- window, limit, count before, count), 3 a bucket (moment at which it is full,
-- fraction, tokens, period, the most tokens), 4 several of these, each with how many
-- numbers it has before it, all in microseconds since 1970. After
-- expires it is as if the row were not there. The view baton_limits shows keys as
-- text. A transaction of the program locks the rows and decides: see limits.go.
--
-- baton_limit_id has what is remembered for the IDs of requests that were
-- allowed.

CREATE TABLE IF NOT EXISTS baton_limit (
	key     bytea PRIMARY KEY, -- no other index, which would make decisions slow
	state   text        NOT NULL,
	expires timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_vacuum_cost_delay = 0);

CREATE TABLE IF NOT EXISTS baton_limit_id (
	key     bytea       NOT NULL, -- the first of the request
	id      text COLLATE "C" NOT NULL,
	at      bigint      NOT NULL, -- when it was allowed, in microseconds since 1970
	wait    bigint      NOT NULL, -- from then to its turn, in microseconds
	expires timestamptz NOT NULL,
	PRIMARY KEY (key, id)
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX IF NOT EXISTS baton_limit_id_expires ON baton_limit_id (expires);

CREATE OR REPLACE VIEW baton_limits AS
	SELECT convert_from(key, 'UTF8') AS key, CASE split_part(state, ' ', 1) WHEN '1' THEN 'window' WHEN '2' THEN 'estimate' WHEN '3' THEN 'bucket' WHEN '4' THEN 'several' END AS kind,
		state, expires, expires - clock_timestamp() AS remaining
	FROM baton_limit WHERE expires > clock_timestamp();

-- baton_sweep_limits_1 removes what has expired: _page IDs, and the keys among the
-- _page keys after the given one. upto is where it ended, NULL at the end of all keys.
-- It waits for no transaction.
--
-- clock_ is what the index is asked with. A row that is newer may have been written
-- after the clock was set back, and is judged by what the clock says then.
CREATE OR REPLACE FUNCTION baton_sweep_limits_1(_after bytea, _page int, OUT upto bytea, OUT removed int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	clock_ CONSTANT timestamptz := clock_timestamp();
	seen   int;
	n      int;
BEGIN
	PERFORM baton_begin_1(), set_config('synchronous_commit', 'off', true);
	WITH old AS (
		SELECT key, id FROM baton_limit_id WHERE expires <= clock_ AND expires <= clock_timestamp()
			ORDER BY expires LIMIT _page FOR UPDATE SKIP LOCKED
	)
	DELETE FROM baton_limit_id b USING old WHERE b.key = old.key AND b.id = old.id;
	GET DIAGNOSTICS removed = ROW_COUNT;
	SELECT count(*), (array_agg(key ORDER BY key DESC))[1] INTO seen, upto
		FROM (SELECT key FROM baton_limit WHERE key > _after ORDER BY key LIMIT _page) AS p;
	IF seen > 0 THEN
		WITH old AS (
			SELECT key FROM baton_limit WHERE key > _after AND key <= upto AND expires <= clock_ AND expires <= clock_timestamp()
			ORDER BY key FOR UPDATE SKIP LOCKED
		)
		DELETE FROM baton_limit b USING old WHERE b.key = old.key;
		GET DIAGNOSTICS n = ROW_COUNT;
		removed := removed + n;
	END IF;
	IF seen < _page THEN
		upto := NULL;
	END IF;
END $$;
