-- The functions of locks, which follow the tables.

-- Rules that the functions keep:
--
-- A function that changes claims first locks the key's row, in a statement of its
-- own, because a statement does not see what was committed after it began.
-- baton_renew_1 is the exception: it changes only ends and ttl, and never waits for a
-- lock.
--
-- A user's transaction that depends on a lease holds FOR KEY SHARE on its row.
-- Renewals and new waiters do not conflict with that. A row is taken away only with
-- FOR UPDATE SKIP LOCKED: a holder whose row cannot be locked keeps the lock, whatever
-- its end.
--
-- Only grants and renewals wait for the disk. Everything else commits asynchronously:
-- if a crash undoes it, a TTL ends it.

-- baton_begin_1 refuses a transaction in which statements would not see what was
-- committed after it began. It turns sequential scans off, because the statistics of a
-- table that was small would choose them.
CREATE OR REPLACE FUNCTION baton_begin_1() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'baton needs the isolation level READ COMMITTED' USING ERRCODE = 'BT001';
	END IF;
	PERFORM set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);
END $$;

-- baton_durable_1 has the commit wait for the disk, whatever the user's setting.
CREATE OR REPLACE FUNCTION baton_durable_1() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
END $$;

-- baton_own_1 locks the claim with the id, of a key whose row is locked. Without its
-- ticket it is searched for. Claims with seq < first belong to an earlier row of the
-- key that was deleted by hand; they do not count.
CREATE OR REPLACE FUNCTION baton_own_1(_k bytea, _id text, _ticket bigint, _first bigint) RETURNS baton_claim
LANGUAGE plpgsql AS $$
DECLARE
	own baton_claim;
BEGIN
	SELECT * INTO own FROM baton_claim WHERE k = _k AND seq = _ticket AND seq >= _first AND id = _id FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		SELECT * INTO own FROM baton_claim WHERE k = _k AND seq >= _first AND id = _id ORDER BY seq DESC LIMIT 1 FOR NO KEY UPDATE;
	END IF;
	RETURN own;
END $$;

-- baton_walk_1 goes through the claims of a key whose row is r and locked: removes
-- the expired ones, adds up the holders, grants the waiters that fit, and stops at the
-- first that does not. The caller writes r.
CREATE OR REPLACE FUNCTION baton_walk_1(
	_k bytea, INOUT r baton_lock,
	OUT used bigint, OUT capacity bigint, OUT claims boolean, OUT head bigint,
	OUT first_owner text, OUT first_since timestamptz, OUT first_ends timestamptz, OUT soonest timestamptz,
	OUT granted text
) LANGUAGE plpgsql AS $$
DECLARE
	c   baton_claim;
	low bigint;
BEGIN
	used := 0; capacity := 0; claims := false; head := 0; granted := '';
	IF r.id <> '' AND r.ends <= clock_timestamp() THEN
		PERFORM 1 FROM baton_lock WHERE k = _k FOR UPDATE SKIP LOCKED;
		IF FOUND THEN
			r.id := ''; r.owner := ''; r.node := ''; r.weight := 1099511627776;
		END IF;
	END IF;
	IF r.id <> '' THEN
		used := r.weight; capacity := 1099511627776;
		first_owner := r.owner; first_since := r.since; first_ends := r.ends; soonest := r.ends;
	END IF;
	IF r.busy THEN
		FOR c IN SELECT * FROM baton_claim WHERE k = _k AND seq >= r.first ORDER BY seq LOOP
			IF c.ends <= clock_timestamp() THEN
				-- It may have been renewed since it was read.
				PERFORM 1 FROM baton_claim WHERE k = _k AND seq = c.seq AND ends <= clock_timestamp() FOR UPDATE SKIP LOCKED;
				IF FOUND THEN
					DELETE FROM baton_claim WHERE k = _k AND seq = c.seq;
					CONTINUE;
				END IF;
			END IF;
			claims := true;
			IF low IS NULL THEN
				low := c.seq;
			END IF;
			IF NOT c.held THEN
				IF used > 0 AND (capacity <> c.capacity OR used + c.weight > c.capacity) THEN
					head := c.seq;
					EXIT;
				END IF;
				c.since := clock_timestamp();
				c.ends := c.since + least(c.ttl, 1500000) * interval '1 microsecond';
				UPDATE baton_claim SET held = true, since = c.since, ends = c.ends WHERE k = _k AND seq = c.seq;
				granted := granted || c.node || ' ' || c.id || ' ' || c.seq || ' ' || c.ttl || E'\n';
			END IF;
			IF used = 0 THEN
				first_owner := c.owner; first_since := c.since; first_ends := c.ends; soonest := c.ends;
			END IF;
			used := used + c.weight; capacity := c.capacity; soonest := least(soonest, c.ends);
		END LOOP;
		r.first := coalesce(low, r.last + 1);
		IF NOT claims AND r.id = '' THEN
			r.ends := clock_timestamp(); -- for the sweep: it was used until now
		END IF;
	END IF;
	r.busy := claims OR r.id <> '' AND r.weight < 1099511627776;
END $$;

-- baton_save_1 writes a row back.
CREATE OR REPLACE FUNCTION baton_save_1(_k bytea, r baton_lock) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE baton_lock SET last = r.last, first = r.first, busy = r.busy, id = r.id, token = r.token,
		weight = r.weight, owner = r.owner, node = r.node, since = r.since, ends = r.ends WHERE k = _k;
END $$;

-- baton_again_1 says in how many microseconds the head of the queue should ask
-- again, because it has to notice a holder that crashed. 0 is the usual time.
CREATE OR REPLACE FUNCTION baton_again_1(soonest timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	left_ bigint := extract(epoch FROM soonest - clock_timestamp()) * 1000000;
BEGIN
	RETURN CASE WHEN left_ <= 0 THEN 50000 -- a transaction holds its row
		WHEN left_ < 399000 THEN left_ + 1000 ELSE 0 END;
END $$;

-- baton_acquire_1 makes one attempt. The answer is text, because a set of
-- columns would be materialised: "state token again age remaining others",
-- and lines with the holder's owner and with the claims that were granted. state is 1
-- held, 2 waiting, 3 refused, 4 held with another capacity.
CREATE OR REPLACE FUNCTION baton_acquire_1(
	_k bytea, _id text, _owner text, _node text, _weight bigint, _capacity bigint, _ttl bigint,
	_queue boolean, _retry boolean, _ticket bigint
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	whole CONSTANT bigint := 1099511627776;
	ttl_  CONSTANT interval := _ttl * interval '1 microsecond';
	now_  timestamptz := clock_timestamp();
	seed  bigint := extract(epoch FROM now_) * 1000000;
	state     int;
	token     bigint;
	again     bigint := 0;
	age       bigint := 0;
	remaining bigint := 0;
	others    bigint := 0;
	r     baton_lock;
	old   baton_lock;
	own   baton_claim;
	w     record;
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		PERFORM baton_begin_1();
	END IF;
	IF _weight = whole THEN
		INSERT INTO baton_lock AS l (k, last, first, busy, id, token, weight, owner, node, since, ends)
		VALUES (_k, seed, seed, false, _id, seed, whole, _owner, _node, now_, now_ + ttl_)
		ON CONFLICT (k) DO UPDATE SET
			last = CASE WHEN l.id = _id THEN l.last ELSE greatest(l.last + 1, seed) END,
			token = CASE WHEN l.id = _id THEN l.token ELSE greatest(l.last + 1, seed) END,
			since = CASE WHEN l.id = _id THEN l.since ELSE clock_timestamp() END,
			owner = CASE WHEN l.id = _id THEN l.owner ELSE _owner END, -- baton_rename_1 may have changed it
			id = _id, weight = whole, node = _node, ends = clock_timestamp() + ttl_
		WHERE NOT l.busy AND (l.id = '' OR l.id = _id AND l.ends > clock_timestamp())
		RETURNING l.token INTO token;
		IF FOUND THEN
			IF current_setting('synchronous_commit') = 'off' THEN
				PERFORM baton_durable_1();
			END IF;
			RETURN '1 ' || token;
		END IF;
	ELSE
		INSERT INTO baton_lock AS l (k, last, first, busy, id, token, weight, owner, node, since, ends)
		VALUES (_k, 0, seed, false, '', 0, whole, '', '', now_, now_)
		ON CONFLICT (k) DO UPDATE SET busy = l.busy WHERE false;
	END IF;

	-- The row is locked now, by a conflict that changed nothing or as new.
	PERFORM baton_begin_1();
	SELECT * INTO r FROM baton_lock WHERE k = _k;
	old := r;
	now_ := clock_timestamp();
	IF r.id = _id AND r.ends > now_ THEN
		UPDATE baton_lock SET ends = now_ + ttl_ WHERE k = _k;
		PERFORM baton_durable_1();
		RETURN '1 ' || r.token;
	END IF;

	IF r.busy AND (_retry OR _ticket > 0) THEN
		own := baton_own_1(_k, _id, _ticket, r.first);
	END IF;
	IF own.seq IS NOT NULL AND own.ends <= now_ THEN
		PERFORM 1 FROM baton_claim WHERE k = _k AND seq = own.seq AND ends <= clock_timestamp() FOR UPDATE SKIP LOCKED;
		IF FOUND THEN
			DELETE FROM baton_claim WHERE k = _k AND seq = own.seq;
			own := NULL;
		END IF;
	END IF;
	IF own.seq IS NOT NULL THEN
		UPDATE baton_claim SET ttl = _ttl, ends = clock_timestamp() + CASE WHEN held THEN ttl_ ELSE interval '1500 ms' END
			WHERE k = _k AND seq = own.seq;
	END IF;

	SELECT * INTO w FROM baton_walk_1(_k, r);
	r := w.r;
	IF own.seq IS NOT NULL THEN
		IF NOT own.held THEN -- the walk may have granted it
			UPDATE baton_claim SET ends = clock_timestamp() + ttl_ WHERE k = _k AND seq = own.seq AND held;
			own.held := FOUND;
		END IF;
		token := own.seq;
		state := CASE WHEN own.held THEN 1 WHEN _queue THEN 2 ELSE 3 END;
	ELSIF w.used > 0 AND w.used < whole AND _weight < whole AND w.capacity <> _capacity THEN
		state := 4; others := w.capacity;
	ELSIF w.head = 0 AND (w.used = 0 OR w.capacity = _capacity AND w.used + _weight <= _capacity) THEN
		r.last := greatest(r.last + 1, seed);
		token := r.last;
		state := 1;
		now_ := clock_timestamp();
		IF _weight = whole THEN -- there is no holder, so there are no claims
			r.id := _id; r.token := token; r.weight := whole; r.owner := _owner; r.node := _node;
			r.since := now_; r.ends := now_ + ttl_;
		ELSE
			INSERT INTO baton_claim (k, seq, id, node, owner, weight, capacity, held, ttl, since, ends)
			VALUES (_k, token, _id, _node, _owner, _weight, _capacity, true, _ttl, now_, now_ + ttl_);
			r.busy := true;
		END IF;
	ELSIF NOT _queue THEN
		state := 3;
	ELSE
		r.last := greatest(r.last + 1, seed);
		token := r.last;
		state := 2;
		r.busy := true;
		now_ := clock_timestamp();
		INSERT INTO baton_claim (k, seq, id, node, owner, weight, capacity, held, ttl, since, ends)
		VALUES (_k, token, _id, _node, _owner, _weight, _capacity, false, _ttl, now_, now_ + interval '1500 ms');
	END IF;
	IF r IS DISTINCT FROM old THEN
		PERFORM baton_save_1(_k, r);
	END IF;

	IF state = 2 AND w.head IN (0, token) THEN
		again := baton_again_1(w.soonest);
	ELSIF state = 3 THEN
		age := extract(epoch FROM clock_timestamp() - w.first_since) * 1000000;
		remaining := extract(epoch FROM w.first_ends - clock_timestamp()) * 1000000;
		SELECT count(*) INTO others FROM baton_claim WHERE k = _k AND seq >= r.first AND NOT held AND ends > clock_timestamp();
	END IF;
	IF state = 1 OR w.granted <> '' THEN
		PERFORM baton_durable_1();
	ELSE
		PERFORM set_config('synchronous_commit', 'off', true);
	END IF;
	RETURN format(E'%s %s %s %s %s %s\n%s\n%s', state, coalesce(token, 0), again, coalesce(age, 0), coalesce(remaining, 0), others,
		w.first_owner, w.granted);
END $$;

-- baton_release_1 ends a claim. The answer is text: state, which is 0 if it
-- had ended already, else 1, and then lines with the claims that were granted.
CREATE OR REPLACE FUNCTION baton_release_1(_k bytea, _id text, _ticket bigint) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	r   baton_lock;
	own baton_claim;
	w   record;
BEGIN
	-- Conditions cost less than statements.
	IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('enable_seqscan') <> 'off' THEN
		PERFORM baton_begin_1();
	END IF;
	IF set_config('synchronous_commit', 'off', true) <> 'off' THEN
		RAISE EXCEPTION 'synchronous_commit cannot be set';
	END IF;
	WITH l AS (
		SELECT ctid FROM baton_lock WHERE k = _k AND id = _id AND NOT busy AND ends > clock_timestamp() FOR UPDATE SKIP LOCKED
	)
	UPDATE baton_lock SET id = '', owner = '', node = '', ends = clock_timestamp() FROM l WHERE baton_lock.ctid = l.ctid;
	IF FOUND THEN
		RETURN '1';
	END IF;

	SELECT * INTO r FROM baton_lock WHERE k = _k FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN '0';
	END IF;
	IF r.id = _id AND r.ends > clock_timestamp() THEN
		r.ends := clock_timestamp(); -- the walk takes it away
	ELSE
		IF r.busy THEN
			own := baton_own_1(_k, _id, _ticket, r.first);
		END IF;
		IF own.seq IS NULL OR own.ends <= clock_timestamp() THEN
			RETURN '0';
		END IF;
		PERFORM baton_end_1(_k, own.seq);
	END IF;
	SELECT * INTO w FROM baton_walk_1(_k, r);
	PERFORM baton_save_1(_k, w.r);
	IF w.granted <> '' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	RETURN E'1\n' || w.granted;
END $$;

-- baton_end_1 ends a claim of a key whose row is locked.
CREATE OR REPLACE FUNCTION baton_end_1(_k bytea, _seq bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM 1 FROM baton_claim WHERE k = _k AND seq = _seq FOR UPDATE SKIP LOCKED;
	IF FOUND THEN
		DELETE FROM baton_claim WHERE k = _k AND seq = _seq;
	ELSE -- being renewed, or a transaction depends on it: the next walk removes it
		UPDATE baton_claim SET ends = clock_timestamp() WHERE k = _k AND seq = _seq;
	END IF;
END $$;
