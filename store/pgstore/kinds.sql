-- baton_downgrade_1 makes a writer a reader. state is 0 if it holds nothing. A
-- transaction that depends on the lease ends first: until then no reader is granted.
CREATE OR REPLACE FUNCTION baton_downgrade_1(
	_k bytea, _id text, _ticket bigint, _ttl bigint, OUT state int, OUT token bigint, OUT granted text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	ttl_ CONSTANT interval := _ttl * interval '1 microsecond';
	r   baton_lock;
	own baton_claim;
	w   record;
BEGIN
	PERFORM baton_begin_1();
	state := 0; token := 0; granted := '';
	SELECT * INTO r FROM baton_lock WHERE k = _k FOR UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	IF r.id = _id AND r.ends > clock_timestamp() THEN
		-- It stays in the lock row, where its renewals look for it.
		r.weight := 1; r.busy := true; r.ends := clock_timestamp() + ttl_;
		token := r.token;
	ELSE
		own := baton_own_1(_k, _id, _ticket, r.first);
		SELECT * INTO own FROM baton_claim WHERE k = _k AND seq = own.seq FOR UPDATE;
		IF NOT FOUND OR NOT own.held OR own.ends <= clock_timestamp() OR own.capacity <> 1099511627776 THEN
			RETURN;
		END IF;
		UPDATE baton_claim SET weight = 1, ttl = _ttl, ends = clock_timestamp() + ttl_ WHERE k = _k AND seq = own.seq;
		token := own.seq;
	END IF;
	state := 1;
	SELECT * INTO w FROM baton_walk_1(_k, r);
	PERFORM baton_save_1(_k, w.r);
	granted := w.granted;
	PERFORM baton_durable_1();
END $$;

-- baton_move_1 makes _new the holder of what _id holds. state is 0 if it holds
-- nothing. A transaction that depends on the lease ends first.
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

-- baton_rename_1 changes the owner of what _id holds. The answer is 0 if it holds
-- nothing, else 1. It waits for no transaction that depends on the lease.
CREATE OR REPLACE FUNCTION baton_rename_1(_k bytea, _id text, _ticket bigint, _owner text) RETURNS int
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	r   baton_lock;
	own baton_claim;
BEGIN
	PERFORM baton_begin_1();
	SELECT * INTO r FROM baton_lock WHERE k = _k FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	IF r.id = _id AND r.ends > clock_timestamp() THEN
		UPDATE baton_lock SET owner = _owner WHERE k = _k;
		RETURN 1;
	END IF;
	IF r.busy THEN
		own := baton_own_1(_k, _id, _ticket, r.first);
	END IF;
	IF own.seq IS NULL OR NOT own.held OR own.ends <= clock_timestamp() THEN
		RETURN 0;
	END IF;
	UPDATE baton_claim SET owner = _owner WHERE k = _k AND seq = own.seq;
	RETURN 1;
END $$;
