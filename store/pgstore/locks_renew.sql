-- baton_renew_1 renews all claims whose rows no other transaction has locked. numbers
-- are their numbers in the lists; states are 1 held or 2 waiting; tokens are the tickets.
CREATE OR REPLACE FUNCTION baton_renew_1(
	_keys bytea[], _ids text[], _seqs bigint[], _ttl bigint,
	OUT numbers int[], OUT states int[], OUT tokens bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	ttl_ CONSTANT interval := _ttl * interval '1 microsecond';
	found_ int[];
	lock_numbers int[];
	lock_tokens bigint[];
BEGIN
	PERFORM baton_begin_1();
	-- The claims first: a claim never moves into baton_lock.
	WITH q AS (
		SELECT c.k, c.seq, u.i FROM unnest(_keys, _ids, _seqs) WITH ORDINALITY AS u (k, id, seq, i)
		JOIN baton_claim c ON c.k = u.k AND c.seq = u.seq AND c.id = u.id
		JOIN baton_lock l ON l.k = u.k AND l.first <= u.seq
		WHERE c.ends > clock_timestamp() FOR NO KEY UPDATE OF c SKIP LOCKED
	), done AS (
		UPDATE baton_claim c SET ttl = _ttl,
			ends = clock_timestamp() + CASE WHEN c.held THEN ttl_ ELSE interval '1500 ms' END
		FROM q WHERE c.k = q.k AND c.seq = q.seq
		RETURNING q.i, CASE WHEN c.held THEN 1 ELSE 2 END AS state, c.seq
	)
	SELECT coalesce(array_agg(i::int), '{}'), coalesce(array_agg(state), '{}'), coalesce(array_agg(seq), '{}')
		INTO numbers, states, tokens FROM done;
	IF cardinality(numbers) < cardinality(_keys) THEN
		WITH q AS (
			SELECT l.k, u.i FROM unnest(_keys, _ids) WITH ORDINALITY AS u (k, id, i)
			JOIN baton_lock l ON l.k = u.k AND l.id = u.id
			WHERE l.ends > clock_timestamp() FOR NO KEY UPDATE OF l SKIP LOCKED
		), done AS (
			UPDATE baton_lock l SET ends = clock_timestamp() + ttl_ FROM q WHERE l.k = q.k
			RETURNING q.i, l.token
		)
		SELECT coalesce(array_agg(i::int), '{}'), coalesce(array_agg(token), '{}')
			INTO lock_numbers, lock_tokens FROM done;
		numbers := numbers || lock_numbers;
		tokens := tokens || lock_tokens;
		states := states || array_fill(1, ARRAY[cardinality(lock_numbers)]);
	END IF;
	IF 1 = ANY (states) THEN
		PERFORM baton_durable_1();
	ELSE
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
END $$;

-- baton_find_1 renews one claim whose row another transaction had locked, or whose
-- ticket is not known. state is 0 if it has ended.
CREATE OR REPLACE FUNCTION baton_find_1(_k bytea, _id text, _ticket bigint, _ttl bigint, OUT state int, OUT token bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	ttl_ CONSTANT interval := _ttl * interval '1 microsecond';
	r   baton_lock;
	own baton_claim;
BEGIN
	PERFORM baton_begin_1();
	state := 0; token := 0;
	SELECT * INTO r FROM baton_lock WHERE k = _k FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	IF r.id = _id THEN
		IF r.ends > clock_timestamp() THEN
			UPDATE baton_lock SET ends = clock_timestamp() + ttl_ WHERE k = _k;
			state := 1; token := r.token;
			PERFORM baton_durable_1();
		END IF;
		RETURN;
	END IF;
	own := baton_own_1(_k, _id, _ticket, r.first);
	IF own.seq IS NOT NULL AND own.ends > clock_timestamp() THEN
		UPDATE baton_claim SET ttl = _ttl, ends = clock_timestamp() + CASE WHEN held THEN ttl_ ELSE interval '1500 ms' END
			WHERE k = _k AND seq = own.seq;
		state := CASE WHEN own.held THEN 1 ELSE 2 END;
		token := own.seq;
		PERFORM baton_durable_1();
	END IF;
END $$;

-- baton_look_1 is the poll of waiters: it grants the lock to all waiters that can have
-- it, because a holder that crashed tells no waiter, and returns each caller's
-- position. The keys come in order. It waits for no key.
CREATE OR REPLACE FUNCTION baton_look_1(
	_keys bytea[], _seqs bigint[], _ttl bigint,
	OUT states int[], OUT agains bigint[], OUT granted_keys bytea[], OUT granted text[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	r    baton_lock;
	w    record;
	key_ bytea;
	seen boolean := false; -- w is of key_
	hold boolean;
BEGIN
	PERFORM baton_begin_1(), set_config('synchronous_commit', 'off', true);
	states := array_fill(2, ARRAY[cardinality(_keys)]);
	agains := array_fill(0::bigint, ARRAY[cardinality(_keys)]);
	granted_keys := '{}'; granted := '{}';
	FOR i IN 1 .. cardinality(_keys) LOOP
		IF key_ IS DISTINCT FROM _keys[i] THEN
			key_ := _keys[i];
			seen := false;
			SELECT * INTO r FROM baton_lock WHERE k = key_ FOR NO KEY UPDATE SKIP LOCKED;
			IF FOUND THEN
				SELECT * INTO w FROM baton_walk_1(key_, r);
				IF w.r IS DISTINCT FROM r THEN
					PERFORM baton_save_1(key_, w.r);
				END IF;
				IF w.granted <> '' THEN
					granted_keys := granted_keys || key_;
					granted := granted || w.granted;
					PERFORM set_config('synchronous_commit', 'on', true);
				END IF;
				seen := true;
			END IF;
		END IF;
		IF seen THEN
			hold := false;
			IF w.granted <> '' THEN
				UPDATE baton_claim SET ends = clock_timestamp() + _ttl * interval '1 microsecond'
					WHERE k = key_ AND seq = _seqs[i] AND held;
				hold := FOUND;
			END IF;
			IF hold THEN
				states[i] := 1;
			ELSIF w.head = _seqs[i] THEN
				agains[i] := baton_again_1(w.soonest);
			END IF;
		END IF;
	END LOOP;
END $$;
