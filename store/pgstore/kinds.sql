-- baton_move_1 passes what _id holds to _new. state is 0 if it holds nothing. A
-- transaction that depends on the lease comes to its end first.
CREATE OR REPLACE FUNCTION baton_move_1(
	_k bytea, _id text, _ticket bigint, _new text, _owner text, _node text, _ttl bigint, OUT state int, OUT token bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	ttl_ CONSTANT interval := _ttl * interval '1 microsecond';
	r     baton_lock;
	own   baton_claim;
	from_ text;
BEGIN
	PERFORM baton_begin_1();
	state := 0; token := 0;
	SELECT * INTO r FROM baton_lock WHERE k = _k FOR UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	FOREACH from_ IN ARRAY ARRAY[_new, _id] LOOP -- _new, if the answer to an earlier attempt was lost
		IF r.id = from_ AND r.ends > clock_timestamp() THEN
			IF from_ <> _new THEN
				r.owner := _owner;
			END IF;
			r.id := _new; r.node := _node; r.ends := clock_timestamp() + ttl_;
			PERFORM baton_save_1(_k, r);
			token := r.token;
		ELSIF r.busy THEN
			own := baton_own_1(_k, from_, _ticket, r.first);
			SELECT * INTO own FROM baton_claim WHERE k = _k AND seq = own.seq FOR UPDATE;
			IF FOUND AND own.held AND own.ends > clock_timestamp() THEN
				UPDATE baton_claim SET id = _new, owner = CASE WHEN from_ = _new THEN owner ELSE _owner END, node = _node, ttl = _ttl, ends = clock_timestamp() + ttl_
					WHERE k = _k AND seq = own.seq;
				token := own.seq;
			END IF;
		END IF;
		IF token > 0 THEN
			state := 1;
			PERFORM baton_durable_1();
			RETURN;
		END IF;
	END LOOP;
END $$;
