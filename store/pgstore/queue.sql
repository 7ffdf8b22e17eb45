-- baton_key_1 releases claims on one key, whose tickets are known, and queues new
-- exclusive claims behind the rest, in one commit. The answer is text: whether the key
-- has claims still, the first ticket drawn, that of the first waiter, and when it
-- should ask again; a line with the numbers of the claims that were released; and lines
-- with the claims that were granted. It is empty, and nothing was done, if the key is
-- free or one of the new claims holds it. A claim that is not in the answer needs a
-- call of its own.
CREATE OR REPLACE FUNCTION baton_key_1(
	_k bytea, _end_ids text[], _end_tickets bigint[], _ids text[], _owners text[], _ttls bigint[], _node text
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	whole CONSTANT bigint := 1099511627776;
	now_   timestamptz;
	first_ bigint := 0;
	again  bigint := 0;
	ended  text := '';
	r   baton_lock;
	own baton_claim;
	w   record;
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('enable_seqscan') <> 'off' THEN
		PERFORM baton_begin_1();
	END IF;
	IF set_config('synchronous_commit', 'off', true) <> 'off' THEN
		RAISE EXCEPTION 'synchronous_commit cannot be set';
	END IF;
	SELECT * INTO r FROM baton_lock WHERE k = _k FOR NO KEY UPDATE;
	IF NOT FOUND OR r.id = ANY (_ids) OR r.id = '' AND NOT r.busy THEN
		RETURN '';
	END IF;
	FOR i IN 1 .. cardinality(_end_ids) LOOP
		IF r.id = _end_ids[i] THEN
			CONTINUE WHEN r.ends <= clock_timestamp();
			r.ends := clock_timestamp(); -- the walk takes it away
		ELSE
			WITH c AS (
				SELECT ctid FROM baton_claim WHERE k = _k AND seq = _end_tickets[i] AND seq >= r.first AND id = _end_ids[i]
					AND ends > clock_timestamp() FOR UPDATE SKIP LOCKED
			)
			DELETE FROM baton_claim USING c WHERE baton_claim.ctid = c.ctid;
			IF NOT FOUND THEN
				own := baton_own_1(_k, _end_ids[i], _end_tickets[i], r.first);
				CONTINUE WHEN own.seq IS NULL OR own.ends <= clock_timestamp();
				PERFORM baton_end_1(_k, own.seq);
			END IF;
		END IF;
		ended := ended || i || ' ';
	END LOOP;
	IF cardinality(_ids) > 0 THEN
		now_ := clock_timestamp();
		first_ := greatest(r.last + 1, (extract(epoch FROM now_) * 1000000)::bigint);
		INSERT INTO baton_claim (k, seq, id, node, owner, weight, capacity, held, ttl, since, ends)
			SELECT _k, first_ + i - 1, id, _node, owner, whole, whole, false, ttl, now_, now_ + interval '1500 ms'
			FROM unnest(_ids, _owners, _ttls) WITH ORDINALITY AS u (id, owner, ttl, i);
		r.last := first_ + cardinality(_ids) - 1;
		r.busy := true;
	END IF;
	SELECT * INTO w FROM baton_walk_1(_k, r);
	r := w.r;
	PERFORM baton_save_1(_k, r);
	IF first_ > 0 THEN
		IF w.head = 0 OR w.head > first_ THEN -- a claim that is granted at once learns it from the answer
			UPDATE baton_claim SET ends = clock_timestamp() + ttl * interval '1 microsecond'
				WHERE k = _k AND seq BETWEEN first_ AND r.last AND held;
		END IF;
		IF w.head >= first_ THEN
			again := baton_again_1(w.soonest);
		END IF;
	END IF;
	IF w.granted <> '' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	RETURN concat(r.busy, ' ', first_, ' ', w.head, ' ', again, E'\n', ended, E'\n', w.granted);
END $$;
