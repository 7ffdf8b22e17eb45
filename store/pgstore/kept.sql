-- The table and function of records of operations and overrides of limits.
--
-- baton_kept has a row for each operation that was begun, and for each override: a line of
-- JSON and, behind it, the result of the operation. From until on it is as if the row were
-- not there. The view baton_texts shows keys and lines as text.

CREATE TABLE IF NOT EXISTS baton_kept (
	key   bytea PRIMARY KEY,    -- records/ or overrides/, and the key
	text  bytea       NOT NULL,
	until timestamptz NOT NULL
);

CREATE INDEX IF NOT EXISTS baton_kept_until ON baton_kept (until);

CREATE OR REPLACE VIEW baton_texts AS
	SELECT convert_from(key, 'UTF8') AS key, until,
		convert_from(substring(text FROM 1 FOR coalesce(nullif(position(decode('0a', 'hex') IN text), 0), length(text) + 1) - 1), 'UTF8') AS text
	FROM baton_kept WHERE until > clock_timestamp();

-- baton_swap_1 makes _next the text of a key for _keep microseconds if its text is _old, and
-- removes it if _next is empty. An empty _old says that there is none. It answers with
-- whether it did or, if not, what is there and for how many microseconds more. A change
-- is on the disk before it is answered or visible to other transactions. A call
-- that changes nothing does not wait for the disk.
CREATE OR REPLACE FUNCTION baton_swap_1(
	_key bytea, _old bytea, _next bytea, _keep bigint, OUT swapped boolean, OUT there bytea, OUT rest bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	r    baton_kept;
	now_ timestamptz;
BEGIN
	PERFORM baton_begin_1();
	swapped := false;
	WHILE NOT swapped LOOP
		SELECT b.* INTO r FROM baton_kept b WHERE b.key = _key FOR UPDATE;
		now_ := clock_timestamp(); -- after the wait for the lock
		there := CASE WHEN r.until > now_ THEN r.text ELSE '' END;
		IF there <> _old THEN
			rest := extract(epoch FROM r.until - now_) * 1000000;
			PERFORM set_config('synchronous_commit', 'off', true);
			RETURN;
		END IF;
		IF _next = '' THEN
			DELETE FROM baton_kept b WHERE b.key = _key;
			swapped := true;
		ELSIF r.key IS NULL THEN
			INSERT INTO baton_kept AS b (key, text, until) VALUES (_key, _next, now_ + _keep * interval '1 microsecond')
				ON CONFLICT (key) DO NOTHING;
			swapped := FOUND; -- or another transaction was faster
		ELSE
			UPDATE baton_kept b SET text = _next, until = now_ + _keep * interval '1 microsecond' WHERE b.key = _key;
			swapped := true;
		END IF;
	END LOOP;
	there := NULL;
	-- Removes a few expired rows, more than are made, and waits for no transaction. The
	-- index needs a constant, and the clock may be set back.
	now_ := clock_timestamp();
	DELETE FROM baton_kept b WHERE b.ctid = ANY (ARRAY (
		SELECT o.ctid FROM baton_kept o WHERE o.until <= now_ AND o.until <= clock_timestamp()
			ORDER BY o.until LIMIT 4 FOR UPDATE SKIP LOCKED));
	PERFORM baton_durable_1();
END $$;
