-- baton_sweep_1 removes rows of keys that were not used for a while, among the
-- given number of keys after the given one. upto is where it ended, NULL at the
-- end of all keys. Keys on which only expired claims are left are freed.
-- A row that is newer than old_ may have been written after the clock was set
-- back, and is judged by what the clock says then.
CREATE OR REPLACE FUNCTION baton_sweep_1(
	_after bytea, _page int, _idle bigint, OUT upto bytea, OUT removed int, OUT granted_keys bytea[], OUT granted text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	idle_ CONSTANT interval := _idle * interval '1 microsecond';
	old_  CONSTANT timestamptz := clock_timestamp() - idle_;
	seen int;
	r    baton_lock;
	w    record;
BEGIN
	PERFORM baton_begin_1(), set_config('synchronous_commit', 'off', true);
	removed := 0; granted_keys := '{}'; granted := '{}';
	SELECT count(*), (array_agg(k ORDER BY k DESC))[1] INTO seen, upto
		FROM (SELECT k FROM baton_lock WHERE k > _after ORDER BY k LIMIT _page) AS p;
	IF seen = 0 THEN
		RETURN;
	END IF;
	FOR r IN SELECT * FROM baton_lock WHERE k > _after AND k <= upto AND busy AND ends <= old_ AND ends <= clock_timestamp() - idle_
		ORDER BY k FOR NO KEY UPDATE SKIP LOCKED
	LOOP
		SELECT * INTO w FROM baton_walk_1(r.k, r);
		IF w.r IS DISTINCT FROM r THEN
			PERFORM baton_save_1(r.k, w.r);
		END IF;
		IF w.granted <> '' THEN
			granted_keys := granted_keys || r.k;
			granted := granted || w.granted;
			PERFORM set_config('synchronous_commit', 'on', true);
		END IF;
	END LOOP;
	WITH idle AS ( -- a counter that is ahead of the clock has to stay
		SELECT k FROM baton_lock WHERE k > _after AND k <= upto AND NOT busy AND ends <= old_
			AND ends <= clock_timestamp() - idle_ AND last < extract(epoch FROM clock_timestamp()) * 1000000
		ORDER BY k FOR UPDATE SKIP LOCKED
	)
	DELETE FROM baton_lock l USING idle WHERE l.k = idle.k;
	GET DIAGNOSTICS removed = ROW_COUNT;
	IF seen < _page THEN
		upto := NULL;
	END IF;
END $$;
