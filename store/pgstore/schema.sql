-- The tables and functions of Baton. Those of locks come first.
--
-- baton_lock has one row for each key: the counter, and the holder, if it was granted
-- without queueing. baton_claim has the waiters, the holders that were granted out of
-- the queue, and shared holders. The view baton_locks shows both to people.
--
-- Everything here may be run again. A function keeps its name, its parameters and its
-- results: a new version of Baton adds functions under new names, and programs of
-- older versions go on with the old ones. A defect is fixed under the old name, also
-- for older programs. Each such change raises SchemaVersion.

CREATE TABLE IF NOT EXISTS baton_lock (
	k      bytea PRIMARY KEY,
	last   bigint      NOT NULL, -- the highest ticket drawn
	first  bigint      NOT NULL, -- no claim of this key has a lower ticket
	busy   boolean     NOT NULL, -- baton_claim may have rows of this key, or weight is a reader's
	id     text COLLATE "C" NOT NULL, -- of the holder; '' is none
	token  bigint      NOT NULL, -- of the holder
	weight bigint      NOT NULL, -- of the holder
	owner  text        NOT NULL,
	node   text        NOT NULL, -- the channel of the holder's process
	since  timestamptz NOT NULL,
	ends   timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_vacuum_cost_delay = 0);

CREATE TABLE IF NOT EXISTS baton_claim (
	k        bytea       NOT NULL,
	seq      bigint      NOT NULL, -- the ticket, which is the token once it is held
	id       text COLLATE "C" NOT NULL,
	node     text        NOT NULL,
	owner    text        NOT NULL,
	weight   bigint      NOT NULL,
	capacity bigint      NOT NULL,
	held     boolean     NOT NULL,
	ttl      bigint      NOT NULL, -- microseconds
	since    timestamptz NOT NULL,
	ends     timestamptz NOT NULL,
	PRIMARY KEY (k, seq) -- no other index, which would make renewals slow
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_vacuum_cost_delay = 0);

CREATE OR REPLACE VIEW baton_locks AS
	SELECT convert_from(k, 'UTF8') AS key, true AS held, owner, weight, 1099511627776 AS capacity, token,
		since, ends, ends - clock_timestamp() AS remaining
	FROM baton_lock WHERE id <> '' AND ends > clock_timestamp()
	UNION ALL
	SELECT convert_from(k, 'UTF8'), held, c.owner, c.weight, capacity, CASE WHEN held THEN seq END,
		c.since, c.ends, c.ends - clock_timestamp()
	FROM baton_claim c JOIN baton_lock l USING (k) WHERE c.seq >= l.first AND c.ends > clock_timestamp();
