-- baton_many_1 releases many exclusive locks and acquires many free ones, in one
-- commit. It waits only for a transaction that inserts the same new key, and therefore
-- inserts keys in order. The answer is text: lines with the numbers of the claims that
-- were released, an empty line, and lines with the numbers of those that were granted
-- and their tokens. A request that is not in it needs a call of its own.
CREATE OR REPLACE FUNCTION baton_many_1(
	_end_keys bytea[], _end_ids text[],
	_keys bytea[], _ids text[], _owners text[], _ttls bigint[], _node text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	whole CONSTANT bigint := 1099511627776;
	now_  timestamptz;
	seed  bigint;
	ended text;
	places int[] := '{}';
	granted text;
	made  text;
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('enable_seqscan') <> 'off' THEN
		PERFORM baton_begin_1();
	END IF;
	IF cardinality(_end_keys) > 0 THEN
		WITH q AS (
			SELECT l.k, u.i FROM unnest(_end_keys, _end_ids) WITH ORDINALITY AS u (k, id, i)
			JOIN baton_lock l ON l.k = u.k AND l.id = u.id
			WHERE NOT l.busy AND l.ends > clock_timestamp() FOR UPDATE OF l SKIP LOCKED
		), done AS (
			UPDATE baton_lock l SET id = '', owner = '', node = '', ends = clock_timestamp() FROM q WHERE l.k = q.k
			RETURNING q.i
		)
		SELECT string_agg(i::text, E'\n') INTO ended FROM done;
	END IF;
	IF cardinality(_keys) > 0 THEN
		now_ := clock_timestamp();
		seed := extract(epoch FROM now_) * 1000000;
		WITH q AS (
			SELECT l.k, u.id, u.owner, u.ttl, u.i FROM unnest(_keys, _ids, _owners, _ttls) WITH ORDINALITY AS u (k, id, owner, ttl, i)
			JOIN baton_lock l ON l.k = u.k
			WHERE NOT l.busy AND l.id = '' FOR NO KEY UPDATE OF l SKIP LOCKED
		), done AS (
			UPDATE baton_lock l SET last = greatest(l.last + 1, seed), token = greatest(l.last + 1, seed), since = now_,
				id = q.id, weight = whole, owner = q.owner, node = _node,
				ends = clock_timestamp() + q.ttl * interval '1 microsecond'
			FROM q WHERE l.k = q.k
			RETURNING q.i, l.token
		)
		SELECT coalesce(array_agg(i::int), '{}'), string_agg(i || ' ' || token, E'\n') INTO places, granted FROM done;
		IF cardinality(places) < cardinality(_keys) THEN
			WITH q AS (
				SELECT * FROM unnest(_keys, _ids, _owners, _ttls) WITH ORDINALITY AS u (k, id, owner, ttl, i)
				WHERE i <> ALL (places) ORDER BY k
			), done AS (
				INSERT INTO baton_lock AS l (k, last, first, busy, id, token, weight, owner, node, since, ends)
				SELECT k, seed, seed, false, id, seed, whole, owner, _node, now_, clock_timestamp() + ttl * interval '1 microsecond'
				FROM q ON CONFLICT (k) DO NOTHING
				RETURNING l.k, l.id, l.token
			)
			SELECT string_agg(q.i || ' ' || done.token, E'\n') INTO made FROM done JOIN q USING (k, id);
		END IF;
	END IF;
	IF granted IS NULL AND made IS NULL THEN
		PERFORM set_config('synchronous_commit', 'off', true);
	ELSE
		PERFORM baton_durable_1();
	END IF;
	RETURN concat(ended, E'\n\n', granted, E'\n', made);
END $$;

