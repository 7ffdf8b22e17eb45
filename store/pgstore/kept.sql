-- The table and functions of records of operations that are to happen once.
--
-- baton_record has one row for each operation that was begun. From until on it is
-- as if the row were not there. The view baton_records shows keys as text.

CREATE TABLE IF NOT EXISTS baton_record (
	key      bytea PRIMARY KEY,
	state    text        NOT NULL, -- begun, failed (another attempt may begin), succeeded or final
	token    bigint      NOT NULL, -- of the last attempt that began
	owner    text        NOT NULL, -- of the last attempt that began
	attempts bigint      NOT NULL, -- how many have begun
	began    timestamptz NOT NULL,
	finished timestamptz,          -- when that attempt ended
	until    timestamptz NOT NULL,
	result   bytea                 -- what it left, or how it failed
);

CREATE INDEX IF NOT EXISTS baton_record_until ON baton_record (until);

CREATE OR REPLACE VIEW baton_records AS
	SELECT convert_from(key, 'UTF8') AS key, state, owner, token, attempts, began, finished, until, result
	FROM baton_record WHERE until > clock_timestamp();

-- The functions answer with how it ended (0 there is no such record, or the
-- attempt is superseded; 1 done), the row as it is then, and for how many
-- microseconds more it is kept. A change is on the disk before it is answered or
-- visible to other transactions. A call that changes nothing does not wait for the disk.

-- baton_record_rest_1 comes last: it says for how long a row is still kept, and makes
-- the commit wait for the disk if the transaction changed something.
CREATE OR REPLACE FUNCTION baton_record_rest_1(_changed boolean, _until timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	IF _changed THEN
		PERFORM baton_durable_1();
	ELSE
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	RETURN extract(epoch FROM _until - clock_timestamp()) * 1000000;
END $$;

CREATE OR REPLACE FUNCTION baton_record_begin_1(
	_key bytea, _token bigint, _owner text, _keep bigint, OUT how int, OUT r baton_record, OUT rest bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	keep_ CONSTANT interval := _keep * interval '1 microsecond';
	now_    timestamptz;
	changed boolean := true;
BEGIN
	PERFORM baton_begin_1();
	how := 1;
	LOOP
		INSERT INTO baton_record AS b (key, state, token, owner, attempts, began, until)
			VALUES (_key, 'begun', _token, _owner, 1, clock_timestamp(), clock_timestamp() + keep_)
			ON CONFLICT (key) DO NOTHING RETURNING b.* INTO r;
		EXIT WHEN FOUND;
		SELECT b.* INTO r FROM baton_record b WHERE b.key = _key FOR UPDATE;
		CONTINUE WHEN NOT FOUND; -- another transaction has removed it
		now_ := clock_timestamp(); -- after the wait for the lock
		IF r.until <= now_ THEN
			UPDATE baton_record b SET state = 'begun', token = _token, owner = _owner, attempts = 1, began = now_, finished = NULL,
				until = now_ + keep_, result = NULL WHERE b.key = _key RETURNING b.* INTO r;
		ELSIF r.state IN ('succeeded', 'final') THEN
			changed := false;
		ELSIF _token < r.token THEN
			how := 0; changed := false;
		ELSIF _token = r.token THEN
			UPDATE baton_record b SET until = now_ + keep_ WHERE b.key = _key RETURNING b.* INTO r;
		ELSE
			UPDATE baton_record b SET state = 'begun', token = _token, owner = _owner, attempts = b.attempts + 1, began = now_,
				finished = NULL, until = now_ + keep_, result = NULL WHERE b.key = _key RETURNING b.* INTO r;
		END IF;
		EXIT;
	END LOOP;
	IF changed THEN
		-- Removes a few expired records, more than are made, and waits for no
		-- transaction. The index needs a constant, and the clock may be set back.
		now_ := clock_timestamp();
		DELETE FROM baton_record b WHERE b.ctid = ANY (ARRAY (
			SELECT o.ctid FROM baton_record o WHERE o.until <= now_ AND o.until <= clock_timestamp()
				ORDER BY o.until LIMIT 4 FOR UPDATE SKIP LOCKED));
	END IF;
	rest := baton_record_rest_1(changed, r.until);
END $$;

CREATE OR REPLACE FUNCTION baton_record_finish_1(
	_key bytea, _token bigint, _state text, _result bytea, _keep bigint, OUT how int, OUT r baton_record, OUT rest bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	now_    timestamptz;
	changed boolean := false;
BEGIN
	PERFORM baton_begin_1();
	how := 0;
	SELECT b.* INTO r FROM baton_record b WHERE b.key = _key FOR UPDATE;
	now_ := clock_timestamp();
	IF r.until <= now_ THEN
		r := NULL;
	ELSIF r.token = _token THEN
		how := 1;
		IF r.state NOT IN ('succeeded', 'final') THEN
			UPDATE baton_record b SET state = _state, finished = now_, until = now_ + _keep * interval '1 microsecond', result = _result
				WHERE b.key = _key RETURNING b.* INTO r;
			changed := true;
		END IF;
	END IF;
	rest := baton_record_rest_1(changed, r.until);
END $$;

CREATE OR REPLACE FUNCTION baton_record_find_1(_key bytea, OUT how int, OUT r baton_record, OUT rest bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	PERFORM baton_begin_1();
	SELECT b.* INTO r FROM baton_record b WHERE b.key = _key AND b.until > clock_timestamp();
	how := FOUND::int;
	rest := baton_record_rest_1(false, r.until);
END $$;

CREATE OR REPLACE FUNCTION baton_record_forget_1(_key bytea, OUT how int, OUT r baton_record, OUT rest bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	PERFORM baton_begin_1();
	DELETE FROM baton_record b WHERE b.key = _key AND b.until > clock_timestamp() RETURNING b.* INTO r;
	how := FOUND::int;
	rest := baton_record_rest_1(how = 1, r.until);
END $$;

-- The table and function of overrides of limits.
--
-- baton_override has a row for each override, at most a thousand. From until on it is
-- as if the row were not there. The view baton_overrides shows keys as text.

CREATE TABLE IF NOT EXISTS baton_override (
	key    bytea PRIMARY KEY, -- of the limit
	n      bigint      NOT NULL,
	period bigint      NOT NULL, -- n are allowed in that many microseconds; 0: in the period of the limit
	burst  bigint      NOT NULL, -- of a token bucket; 0: it changes as the rate does
	until  timestamptz NOT NULL
);

CREATE OR REPLACE VIEW baton_overrides AS
	SELECT convert_from(key, 'UTF8') AS key, n, period * interval '1 microsecond' AS period, burst, until
	FROM baton_override WHERE until > clock_timestamp();

-- baton_override_set_1 sets the override of a key for _keep microseconds, or removes it
-- if _keep is 0. The answer is 0 if other keys have _most overrides already, else 1.
CREATE OR REPLACE FUNCTION baton_override_set_1(_key bytea, _n bigint, _period bigint, _burst bigint, _keep bigint, _most int) RETURNS int
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	others int;
	until_ timestamptz;
BEGIN
	PERFORM baton_begin_1(), baton_durable_1();
	-- The table is small. With sequential scans off, the server estimates such a cost
	-- that it compiles the statement each time.
	PERFORM set_config('enable_seqscan', 'on', true);
	IF _keep = 0 THEN
		DELETE FROM baton_override WHERE key = _key;
		RETURN 1;
	END IF;
	DELETE FROM baton_override b USING (
		SELECT key FROM baton_override WHERE until <= clock_timestamp() AND key <> _key FOR UPDATE SKIP LOCKED
	) AS old WHERE b.key = old.key;
	SELECT count(*) INTO others FROM baton_override WHERE until > clock_timestamp() AND key <> _key;
	IF others >= _most THEN
		RETURN 0;
	END IF;
	until_ := clock_timestamp() + _keep * interval '1 microsecond';
	INSERT INTO baton_override (key, n, period, burst, until) VALUES (_key, _n, _period, _burst, until_)
		ON CONFLICT (key) DO UPDATE SET n = _n, period = _period, burst = _burst, until = until_;
	RETURN 1;
END $$;
