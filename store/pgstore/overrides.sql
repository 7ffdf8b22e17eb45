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

-- baton_override_set_1 sets the override of a key, for so many microseconds, or removes
-- it if there are none. The answer is 0 if as many others stand as there may be, else 1.
CREATE OR REPLACE FUNCTION baton_override_set_1(_key bytea, _n bigint, _period bigint, _burst bigint, _keep bigint, _most int) RETURNS int
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	others int;
	until_ timestamptz;
BEGIN
	PERFORM baton_begin_1(), baton_durable_1();
	-- The table is small. The server takes what it must not read as a whole for so dear
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
