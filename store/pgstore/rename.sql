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
