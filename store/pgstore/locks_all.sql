-- baton_together_1 acquires several keys, all or none: it has baton_acquire_1 make
-- one attempt for each, and undoes them all if one is refused. refused is the
-- number of that request, or 0; answers are those of baton_acquire_1 up to it. If
-- what an earlier attempt had left is granted to other claims, there are two answers
-- for each request, and the second ones are those of baton_release_1. The keys come in
-- order.
--
-- Rows that exist are locked first, in order; missing ones are inserted then, in order.
-- A transaction that has inserted a row thus waits only for transactions that insert
-- one, because baton_many_1 waits for an insert while it holds locks on other rows. If
-- another transaction inserted a row first, or the server reports a deadlock, the
-- attempt starts over. A deadlock takes a row that is inserted, committed and released
-- between two statements.
CREATE OR REPLACE FUNCTION baton_together_1(
	_keys bytea[], _ids text[], _owners text[], _node text, _weights bigint[], _capacities bigint[], _ttls bigint[],
	_retries boolean[], _tickets bigint[], OUT refused int, OUT answers text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	now_  timestamptz;
	first_ bigint;
	there bytea[];
	made  int;
	left_ text[];
	durable boolean := false;
BEGIN
	PERFORM baton_begin_1();
	LOOP
		refused := 0; answers := '{}';
		BEGIN
			SELECT coalesce(array_agg(k), '{}') INTO there
				FROM (SELECT k FROM baton_lock WHERE k = ANY (_keys) ORDER BY k FOR NO KEY UPDATE) AS l;
			IF cardinality(there) < cardinality(_keys) THEN
				now_ := clock_timestamp();
				first_ := extract(epoch FROM now_) * 1000000;
				-- The clock may be set back while this waits for a transaction that inserts the
				-- same row. last keeps the tickets that are drawn then from falling below first.
				INSERT INTO baton_lock (k, last, first, busy, id, token, weight, owner, node, since, ends)
					SELECT k, first_ - 1, first_, false, '', 0, 1099511627776, '', '', now_, now_
					FROM unnest(_keys) AS u (k)
					WHERE k <> ALL (there) AND NOT EXISTS (SELECT FROM baton_lock AS l WHERE l.k = u.k) ORDER BY k
					ON CONFLICT (k) DO NOTHING;
				GET DIAGNOSTICS made = ROW_COUNT;
				IF made < cardinality(_keys) - cardinality(there) THEN
					RAISE SQLSTATE 'BT003'; -- that row has to be locked in order
				END IF;
			END IF;
			FOR i IN 1 .. cardinality(_keys) LOOP
				answers[i] := baton_acquire_1(_keys[i], _ids[i], _owners[i], _node, _weights[i], _capacities[i], _ttls[i],
					false, _retries[i], _tickets[i]);
				IF answers[i] NOT LIKE '1 %' THEN
					refused := i;
					RAISE SQLSTATE 'BT002';
				END IF;
			END LOOP;
			RETURN;
		EXCEPTION
			WHEN SQLSTATE 'BT003' OR deadlock_detected THEN
				CONTINUE;
			WHEN SQLSTATE 'BT002' THEN
				NULL; -- all is undone
		END;
		left_ := array_fill(''::text, ARRAY[cardinality(_keys)]);
		FOR i IN 1 .. cardinality(_keys) LOOP
			IF _retries[i] OR _tickets[i] > 0 THEN -- what an earlier attempt left goes, too
				left_[i] := baton_release_1(_keys[i], _ids[i], _tickets[i]);
				durable := durable OR length(left_[i]) > 2; -- other claims were granted
			END IF;
		END LOOP;
		IF durable THEN
			answers := answers || array_fill(''::text, ARRAY[cardinality(_keys) - refused]) || left_;
		END IF;
		PERFORM set_config('synchronous_commit', CASE WHEN durable THEN 'on' ELSE 'off' END, true);
		RETURN;
	END LOOP;
END $$;
