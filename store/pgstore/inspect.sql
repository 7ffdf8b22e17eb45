-- baton_among_1 says whether a break of these grants ends what id holds.
CREATE OR REPLACE FUNCTION baton_among_1(_id text, _grants text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
	SELECT coalesce(cardinality(_grants), 0) = 0 OR encode(substr(sha256(convert_to(_id, 'UTF8')), 1, 8), 'hex') = ANY (_grants)
$$;

-- baton_break_1 ends all holders of a key, or those that driver.GrantOf names so. broken
-- lists them like granted.
CREATE OR REPLACE FUNCTION baton_break_1(_k bytea, _grants text[], OUT ended int, OUT broken text, OUT granted text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	r baton_lock;
	c baton_claim;
	w record;
BEGIN
	PERFORM baton_begin_1();
	ended := 0; broken := ''; granted := '';
	SELECT * INTO r FROM baton_lock WHERE k = _k FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	IF r.id <> '' AND r.ends > clock_timestamp() AND baton_among_1(r.id, _grants) THEN
		ended := 1;
		broken := r.node || ' ' || r.id || ' 0 0' || E'\n';
		r.ends := clock_timestamp();
	END IF;
	IF r.busy THEN
		FOR c IN SELECT * FROM baton_claim WHERE k = _k AND seq >= r.first ORDER BY seq LOOP
			EXIT WHEN NOT c.held; -- holders precede waiters
			CONTINUE WHEN NOT baton_among_1(c.id, _grants);
			IF c.ends > clock_timestamp() THEN
				ended := ended + 1;
				broken := broken || c.node || ' ' || c.id || ' 0 0' || E'\n';
			END IF;
			PERFORM baton_end_1(_k, c.seq);
		END LOOP;
	END IF;
	SELECT * INTO w FROM baton_walk_1(_k, r);
	PERFORM baton_save_1(_k, w.r);
	granted := w.granted;
	PERFORM baton_durable_1();
END $$;
