-- The tables and functions of rate limits.
--
-- baton_limit has one row for each key of which something was taken. state is
-- what package rate says of it: 1 is a window (2^51 and the longest life, and pairs
-- of a moment and what counts until then), 2 an estimate (period, number of the
-- window, limit, count before, count), 3 a bucket (moment at which it is full,
-- fraction, tokens, period, the most tokens), 4 several of these, each with how many
-- numbers it has before it, all in microseconds since 1970. After
-- expires it is as if the row were not there. The view baton_limits shows keys as
-- text.
--
-- baton_limit_id has what is remembered for the IDs of requests that were
-- allowed.

CREATE TABLE IF NOT EXISTS baton_limit (
	key     bytea PRIMARY KEY, -- no other index, which would make decisions slow
	state   bigint[]    NOT NULL,
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
	SELECT convert_from(key, 'UTF8') AS key, CASE state[1] WHEN 1 THEN 'window' WHEN 2 THEN 'estimate' WHEN 3 THEN 'bucket' WHEN 4 THEN 'several' END AS kind,
		state, expires, expires - clock_timestamp() AS remaining
	FROM baton_limit WHERE expires > clock_timestamp();

-- baton_take_1 decides about one limit. The answer is
--
--	how it ended, when, the state that was there …
--
-- or a shorter one that says the same, from which the caller computes everything
-- else. It ended with 0 refused, 1 allowed, 2 repeated, or 3 if the clock is outside
-- the windows of a calendar. With _look the caller expects that nothing will change:
-- the function first decides without a lock.
--
-- Commits do not wait for the disk: what a crash takes back is allowed once more.
CREATE OR REPLACE FUNCTION baton_take_1(
	_key bytea, _n bigint[], _cost bigint, _mode int, _ahead bigint, _at bigint, _wait bigint, _now bigint, _look boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	there  boolean;
	s      bigint[];
	until_ timestamptz;
	clock_ timestamptz;
	now_   bigint := _now;
	a      bigint[];
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' OR set_config('synchronous_commit', 'off', true) <> 'off'
		OR set_config('enable_seqscan', 'off', true) <> 'off' OR set_config('plan_cache_mode', 'force_generic_plan', true) = ''
	THEN
		PERFORM baton_begin_1(); -- refuses the isolation level
	END IF;
	LOOP
		IF _look THEN
			SELECT state, expires INTO s, until_ FROM baton_limit WHERE key = _key;
		ELSE
			SELECT state, expires INTO s, until_ FROM baton_limit WHERE key = _key FOR NO KEY UPDATE;
		END IF;
		there := FOUND;
		clock_ := clock_timestamp(); -- after the wait for the lock
		IF _now = 0 THEN
			now_ := extract(epoch FROM clock_) * 1000000;
		END IF;
		IF NOT there OR until_ <= clock_ OR baton_sane_1(s) IS NOT TRUE THEN
			s := '{}';
		END IF;
		IF s[1] <> _n[1] OR s[1] = 2 AND s[2] <> _n[3] THEN -- of other limits
			IF _n[1] = 1 AND _n[6] <> 0 AND (now_ < _n[6] OR now_ >= _n[9]) THEN
				RETURN ARRAY[3, now_];
			END IF;
			a := baton_mixed_1(_n, s, now_, _cost, _mode, _ahead, _at, _wait, true);
		ELSIF _n[1] = 3 THEN
			a := baton_bucket_1(_n, s, now_, _cost, _mode, _ahead, _at, _wait, true);
		ELSIF _n[1] = 2 THEN
			a := baton_estimate_1(_n, s, now_, _cost, _mode, _ahead, _at, _wait, true);
		ELSIF _n[6] <> 0 AND (now_ < _n[6] OR now_ >= _n[9]) THEN
			RETURN ARRAY[3, now_];
		ELSE
			a := baton_window_1(_n, s, now_, _cost, _mode, _ahead, _at, _wait, true);
		END IF;
		EXIT WHEN a[2] = 0;
		IF _look THEN
			_look := false;
		ELSIF cardinality(a) = 4 THEN
			DELETE FROM baton_limit WHERE key = _key;
			EXIT;
		ELSE
			until_ := clock_ + CASE _now WHEN 0 THEN a[3] ELSE greatest(a[3], 600000000) END * interval '1 microsecond';
			IF there THEN
				UPDATE baton_limit SET state = a[5:], expires = until_ WHERE key = _key;
				EXIT;
			END IF;
			INSERT INTO baton_limit (key, state, expires) VALUES (_key, a[5:], until_) ON CONFLICT (key) DO NOTHING;
			EXIT WHEN FOUND; -- else another transaction inserted the row first
		END IF;
	END LOOP;
	IF _n[1] = 1 AND _mode = 0 AND cardinality(s) > 40 AND s[1] = 1 AND s[cardinality(s) - 1] <= baton_until_1(_n, now_) THEN
		s := baton_brief_1(s, now_, _cost, _n[2]);
	END IF;
	RETURN ARRAY[a[1], now_] || s;
END $$;

-- baton_take_many_1 makes decisions about one limit each, in order where they are
-- about one key. Keys are locked in order, so there is no deadlock, and each is
-- written once. There are eighteen numbers for each request: the eleven of the limit,
-- and the other arguments of baton_take_1. The answer is, for each,
--
--	its number, how many numbers the state has that was there, how it ended, when, the state …
CREATE OR REPLACE FUNCTION baton_take_many_1(_keys bytea[], _numbers bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	r      record;
	look_  boolean;
	there  boolean;
	s      bigint[];
	until_ timestamptz;
	clock_ timestamptz;
	now_   bigint;
	i      int;
	n      bigint[];
	a      bigint[];
	changed boolean;
	part   bigint[];
	answer bigint[] := '{}';
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' OR set_config('synchronous_commit', 'off', true) <> 'off'
		OR set_config('enable_seqscan', 'off', true) <> 'off' OR set_config('plan_cache_mode', 'force_generic_plan', true) = ''
	THEN
		PERFORM baton_begin_1();
	END IF;
	FOR r IN
		SELECT k, array_agg(u.i::int ORDER BY u.i) AS places, bool_and(_numbers[18 * u.i] = 1) AS looks
			FROM unnest(_keys) WITH ORDINALITY AS u (k, i) GROUP BY k ORDER BY k
	LOOP
		look_ := r.looks;
		LOOP
			IF look_ THEN
				SELECT state, expires INTO s, until_ FROM baton_limit WHERE key = r.k;
			ELSE
				SELECT state, expires INTO s, until_ FROM baton_limit WHERE key = r.k FOR NO KEY UPDATE;
			END IF;
			there := FOUND;
			clock_ := clock_timestamp(); -- after the wait for the lock
			IF NOT there OR until_ <= clock_ OR baton_sane_1(s) IS NOT TRUE THEN
				s := '{}';
			END IF;
			changed := false;
			part := '{}';
			FOREACH i IN ARRAY r.places LOOP
				n := _numbers[18 * i - 17:18 * i];
				now_ := CASE n[17] WHEN 0 THEN extract(epoch FROM clock_) * 1000000 ELSE n[17] END;
				IF n[1] = 1 AND n[6] <> 0 AND (now_ < n[6] OR now_ >= n[9]) THEN
					part := part || ARRAY[i, 0, 3, now_];
					CONTINUE;
				ELSIF s[1] <> n[1] OR s[1] = 2 AND s[2] <> n[3] THEN -- of other limits
					a := baton_mixed_1(n, s, now_, n[12], n[13]::int, n[14], n[15], n[16], true);
				ELSIF n[1] = 3 THEN
					a := baton_bucket_1(n, s, now_, n[12], n[13]::int, n[14], n[15], n[16], true);
				ELSIF n[1] = 2 THEN
					a := baton_estimate_1(n, s, now_, n[12], n[13]::int, n[14], n[15], n[16], true);
				ELSE
					a := baton_window_1(n, s, now_, n[12], n[13]::int, n[14], n[15], n[16], true);
				END IF;
				part := part || ARRAY[i, cardinality(s), a[1], now_] || s;
				IF a[2] = 1 THEN
					changed := true;
					s := a[5:];
					until_ := clock_ + CASE n[17] WHEN 0 THEN a[3] ELSE greatest(a[3], 600000000) END * interval '1 microsecond';
					IF n[17] <> 0 AND baton_sane_1(s) IS NOT TRUE THEN
						s := '{}';
					END IF;
				END IF;
			END LOOP;
			EXIT WHEN NOT changed;
			IF look_ THEN
				look_ := false;
			ELSIF cardinality(s) = 0 THEN
				IF there THEN -- else a request that did not wait for us may have made the row by now
					DELETE FROM baton_limit WHERE key = r.k;
				END IF;
				EXIT;
			ELSIF there THEN
				UPDATE baton_limit SET state = s, expires = until_ WHERE key = r.k;
				EXIT;
			ELSE
				INSERT INTO baton_limit (key, state, expires) VALUES (r.k, s, until_) ON CONFLICT (key) DO NOTHING;
				EXIT WHEN FOUND; -- else another transaction inserted the row first
			END IF;
		END LOOP;
		answer := answer || part;
	END LOOP;
	RETURN answer;
END $$;

-- baton_take_all_1 makes one decision about several limits, or one with an ID.
-- There are eleven numbers for each limit. The answer is
--
--	how it ended, when, when it was taken, its turn from then,
--
-- and for each limit how many numbers the state has that was there, and the state.
CREATE OR REPLACE FUNCTION baton_take_all_1(
	_keys bytea[], _numbers bigint[], _costs bigint[], _mode int, _ahead bigint, _at bigint, _wait bigint, _now bigint,
	_id text, _keep bigint, _look boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	size   CONSTANT int := cardinality(_keys);
	before baton_limit[]; -- the rows that are there, with what they mean now
	after  baton_limit[];
	l      baton_limit;
	n      bigint[];
	a      bigint[];
	ok     bigint;
	wait_  bigint;
	taken  bigint;
	do_    boolean;
	changed boolean;
	clock_ timestamptz;
	now_   bigint;
	answer bigint[] := '{}';
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' OR set_config('synchronous_commit', 'off', true) <> 'off'
		OR set_config('enable_seqscan', 'off', true) <> 'off' OR set_config('plan_cache_mode', 'force_generic_plan', true) = ''
	THEN
		PERFORM baton_begin_1();
	END IF;
	LOOP
		IF NOT _look THEN
			-- All are locked in order, those that are not there by making them.
			INSERT INTO baton_limit AS b (key, state, expires) SELECT k, '{}', '-infinity' FROM unnest(_keys) AS u (k) ORDER BY k
				ON CONFLICT (key) DO UPDATE SET state = b.state WHERE false;
		END IF;
		SELECT array_agg((SELECT b FROM baton_limit b WHERE b.key = u.k) ORDER BY u.i) INTO before
			FROM unnest(_keys) WITH ORDINALITY AS u (k, i);
		clock_ := clock_timestamp(); -- after the wait for the locks
		now_ := CASE _now WHEN 0 THEN extract(epoch FROM clock_) * 1000000 ELSE _now END;
		ok := 1; wait_ := 0; taken := now_;
		FOR i IN 1 .. size LOOP
			l := before[i];
			IF l.expires <= clock_ OR baton_sane_1(l.state) IS NOT TRUE THEN
				l.state := '{}';
				before[i] := l;
			END IF;
			IF _numbers[11 * i - 10] = 1 AND _numbers[11 * i - 5] <> 0 AND (now_ < _numbers[11 * i - 5] OR now_ >= _numbers[11 * i - 2]) THEN
				ok := 3;
			END IF;
		END LOOP;
		IF ok = 1 AND _id <> '' THEN
			SELECT at, wait, 2 INTO taken, wait_, ok FROM baton_limit_id WHERE key = _keys[1] AND id = _id AND expires > clock_;
			IF NOT FOUND THEN
				ok := 1; wait_ := 0; taken := now_;
			END IF;
		END IF;
		-- If one limit refuses after other limits have allowed, these are asked again for
		-- what they keep if nothing is taken.
		do_ := true;
		changed := false;
		WHILE ok < 2 LOOP
			changed := false; after := before;
			FOR i IN 1 .. size LOOP
				l := before[i];
				n := _numbers[11 * i - 10:11 * i];
				IF l.state[1] <> n[1] OR l.state[1] = 2 AND l.state[2] <> n[3] THEN -- of other limits
					a := baton_mixed_1(n, l.state, now_, _costs[i], _mode, _ahead, _at, _wait, do_);
				ELSIF n[1] = 3 THEN
					a := baton_bucket_1(n, l.state, now_, _costs[i], _mode, _ahead, _at, _wait, do_);
				ELSIF n[1] = 2 THEN
					a := baton_estimate_1(n, l.state, now_, _costs[i], _mode, _ahead, _at, _wait, do_);
				ELSE
					a := baton_window_1(n, l.state, now_, _costs[i], _mode, _ahead, _at, _wait, do_);
				END IF;
				ok := least(ok, a[1]);
				wait_ := greatest(wait_, a[4]);
				changed := changed OR a[2] = 1;
				l.state := a[5:];
				l.expires := clock_ + CASE _now WHEN 0 THEN a[3] ELSE greatest(a[3], 600000000) END * interval '1 microsecond';
				after[i] := l;
			END LOOP;
			EXIT WHEN ok = 1 OR NOT do_;
			do_ := false;
		END LOOP;
		EXIT WHEN NOT _look OR NOT changed;
		_look := false;
	END LOOP;
	FOR i IN 1 .. size LOOP
		l := before[i];
		IF _numbers[11 * i - 10] = 1 AND _mode = 0 AND cardinality(l.state) > 40 AND l.state[1] = 1 AND ok < 2
			AND l.state[cardinality(l.state) - 1] <= baton_until_1(_numbers[11 * i - 10:11 * i], now_)
		THEN
			l.state := baton_brief_1(l.state, now_, _costs[i], _numbers[11 * i - 9]);
		END IF;
		answer := answer || cardinality(l.state)::bigint || l.state;
		l := before[i];
		IF changed THEN
			l := after[i];
		END IF;
		IF _look THEN
			NULL;
		ELSIF cardinality(l.state) = 0 THEN -- nothing to keep, or only made to be locked
			DELETE FROM baton_limit WHERE key = _keys[i];
		ELSIF changed AND l IS DISTINCT FROM before[i] THEN
			UPDATE baton_limit SET state = l.state, expires = l.expires WHERE key = _keys[i];
		END IF;
	END LOOP;
	IF ok = 1 AND changed AND _id <> '' THEN
		INSERT INTO baton_limit_id (key, id, at, wait, expires)
			VALUES (_keys[1], _id, now_, wait_, clock_ + CASE _now WHEN 0 THEN _keep ELSE greatest(_keep, 600000000) END * interval '1 microsecond')
			ON CONFLICT (key, id) DO UPDATE SET at = excluded.at, wait = excluded.wait, expires = excluded.expires;
	END IF;
	RETURN ARRAY[ok, now_, taken, wait_] || answer;
END $$;

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
