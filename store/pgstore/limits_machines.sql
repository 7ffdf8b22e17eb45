-- The machines of rate limits: one function for each, which does what package
-- rate does in Go. The arguments are the numbers of the limit, the state, the
-- present, the cost, the mode (0 take if allowed, 1 take anyway, 2 give back, 3
-- forget), the longest wait, the moment and the turn of the take that is given
-- back, and whether to act or only to bring the state up to date with clocks and
-- limits. The answer is
--
--	allowed, whether to keep the state, how long, the wait for the turn, the state …
--
-- The caller computes the rest from the state that was there. Each expression
-- costs half a microsecond: what is rare is behind conditions.

-- baton_sane_1 is true of states that a machine can compute with.
CREATE OR REPLACE FUNCTION baton_sane_1(s bigint[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
	SELECT array_ndims(s) = 1 AND array_lower(s, 1) = 1 AND 0 <= ALL (s) AND 9007199254740992 > ALL (s)
		AND (s[1] <> 2 OR cardinality(s) <> 6 OR s[4] > greatest(s[5], s[6]) / 100)
$$;

-- baton_until_1 is until when something counts in a window that is taken at a
-- moment. The numbers are 1, limit, part, life, offset and four boundaries.
CREATE OR REPLACE FUNCTION baton_until_1(_n bigint[], _now bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE
		WHEN _n[6] = 0 THEN _now - ((_now - _n[5]) % _n[3] + _n[3]) % _n[3] + _n[4]
		WHEN _now < _n[7] THEN _n[7]
		WHEN _now < _n[8] THEN _n[8]
		ELSE _n[9] END
$$;

CREATE OR REPLACE FUNCTION baton_window_1(
	_n bigint[], s bigint[], _now bigint, _cost bigint, _mode int, _ahead bigint, _at bigint, _wait bigint, _do boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	end_  CONSTANT bigint := baton_until_1(_n, _now);
	life_ CONSTANT bigint := CASE WHEN _n[6] = 0 THEN _n[4] ELSE end_ - CASE end_ WHEN _n[7] THEN _n[6] WHEN _n[8] THEN _n[7] ELSE _n[8] END END;
	mark  CONSTANT bigint := 2251799813685248 + life_;
	size  int := cardinality(s);
	first int;
	n     bigint;
	x     bigint;
	used  bigint := 0;
	cost_ bigint; -- NULL takes nothing
	wait_ bigint := 0;
	changed int := 0;
BEGIN
	-- Settle.
	IF size > 2 AND size % 2 = 0 AND s[1] = 1 AND s[2] >= 1 THEN
		IF s[3] <= _now THEN
			first := 5;
			WHILE first <= size AND s[first] <= _now LOOP
				first := first + 2;
			END LOOP;
			s := CASE WHEN first <= size THEN s[1:2] || s[first:size] ELSE '{}' END;
			size := cardinality(s);
		END IF;
	ELSIF size > 0 THEN
		s := '{}'; size := 0;
	END IF;
	IF size > 0 THEN
		IF s[size - 1] > end_ + life_ THEN
			x := greatest(life_, s[2] - 2251799813685248); -- the longest life
			IF s[size - 1] > end_ + x THEN -- a clock that was ahead
				x := CASE WHEN x > life_ THEN _now + x ELSE end_ END;
				n := 0;
				WHILE size > 2 AND s[size - 1] >= x LOOP
					n := n + s[size];
					size := size - 2;
				END LOOP;
				s := s[1:size] || ARRAY[x, n];
				size := size + 2;
				changed := 1;
			END IF;
		END IF;
		IF size > 60 THEN
			used := (SELECT sum(s[i]) FROM generate_series(4, size, 2) AS i);
		ELSE
			FOR i IN 4 .. size BY 2 LOOP
				used := used + s[i];
			END LOOP;
		END IF;
	END IF;
	-- Ask, and act.
	IF _mode = 0 AND _cost > 0 THEN
		IF _cost > _n[2] OR used + _cost > _n[2] THEN
			RETURN ARRAY[0, changed, CASE WHEN used > 0 THEN s[size - 1] - _now ELSE 0 END, 0] || s;
		END IF;
		cost_ := _cost;
	ELSIF _mode = 1 AND _cost > 0 THEN
		n := used + least(_cost, _n[2]) - _n[2];
		IF n > 0 THEN
			FOR i IN 3 .. size BY 2 LOOP
				n := n - s[i + 1];
				IF n <= 0 THEN
					wait_ := greatest(s[i] - _now, 0);
					EXIT;
				END IF;
			END LOOP;
		END IF;
		cost_ := least(_cost, 2 * _n[2] - used);
	END IF;
	IF _do THEN
		IF _mode <= 1 THEN
			IF _cost > 0 THEN
				changed := 1;
			END IF;
			IF cost_ > 0 THEN
				used := used + cost_;
				IF size = 0 THEN
					s := ARRAY[1, mark, end_, cost_];
					size := 4;
				ELSIF s[size - 1] < end_ THEN
					s[2] := mark;
					s := s || ARRAY[end_, cost_];
					size := size + 2;
				ELSIF s[size - 1] = end_ OR s[2] <= mark THEN
					s[2] := mark;
					s[size] := s[size] + cost_;
				ELSE -- later ones count for longer
					first := 3;
					WHILE s[first] < end_ LOOP
						first := first + 2;
					END LOOP;
					IF s[first] = end_ THEN
						s[first + 1] := s[first + 1] + cost_;
					ELSE
						s := s[1:first - 1] || ARRAY[end_, cost_] || s[first:size];
						size := size + 2;
					END IF;
				END IF;
				IF _mode = 1 AND _cost > _n[2] THEN
					n := used - _n[2];
					FOR i IN 3 .. size BY 2 LOOP
						EXIT WHEN n <= 0;
						n := n - s[i + 1];
						IF n <= 0 THEN
							wait_ := greatest(wait_, s[i] - _now);
						END IF;
					END LOOP;
				END IF;
			END IF;
		ELSIF size = 0 THEN
			NULL;
		ELSIF _mode = 3 THEN
			changed := 1;
			s := '{}'; size := 0; used := 0;
		ELSIF _cost > 0 THEN
			changed := 1;
			n := baton_until_1(_n, _at);
			FOR i IN 3 .. size BY 2 LOOP
				IF s[i] = n THEN
					n := least(s[i + 1], _cost);
					used := used - n;
					IF s[i + 1] > n THEN
						s[i + 1] := s[i + 1] - n;
					ELSIF size = 4 THEN
						s := '{}'; size := 0; used := 0;
					ELSE
						s := s[1:i - 1] || s[i + 2:size];
						size := size - 2;
					END IF;
					EXIT;
				END IF;
			END LOOP;
		END IF;
	END IF;
	RETURN ARRAY[1, changed, CASE WHEN used > 0 THEN s[size - 1] - _now ELSE 0 END, wait_] || s;
END $$;

-- The numbers are 2, limit, period and grain.
CREATE OR REPLACE FUNCTION baton_estimate_1(
	_n bigint[], s bigint[], _now bigint, _cost bigint, _mode int, _ahead bigint, _at bigint, _wait bigint, _do boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	limit_ CONSTANT bigint := _n[2];
	period CONSTANT bigint := _n[3];
	at_    CONSTANT bigint := (_now - (_now % _n[3] + _n[3]) % _n[3]) / _n[3];
	there  boolean;
	number bigint;
	most   bigint; -- a limit that is at least half of either count
	before bigint;
	count_ bigint;
	on_    bigint;
	passed bigint;
	length_ bigint;
	cost_  bigint;
	wait_  bigint := 0;
	changed int := 0;
BEGIN
	-- Settle.
	there := cardinality(s) = 6 AND s[1] = 2 AND s[2] = period AND s[4] >= 1 AND s[5] >= 0 AND s[6] >= 0;
	IF there THEN
		number := s[3]; most := s[4]; before := s[5]; count_ := s[6];
		on_ := at_ - number;
		IF on_ >= 2 OR on_ = 1 AND count_ = 0 THEN
			there := false;
		ELSIF on_ = 1 THEN
			before := count_; count_ := 0;
		ELSIF on_ < -1 THEN
			count_ := least(before + count_, 2 * most); before := 0; changed := 1;
		END IF;
		IF on_ > 0 OR on_ < -1 THEN
			number := at_;
		END IF;
	END IF;
	IF there IS NOT TRUE THEN
		there := false; number := at_; most := limit_; before := 0; count_ := 0; changed := 0;
	END IF;
	-- Ask.
	cost_ := _cost;
	IF _mode <= 1 AND _cost > 0 THEN
		passed := greatest(_now - number * period, 0) / _n[4];
		length_ := period / _n[4];
		cost_ := least(_cost, limit_ + 1 - _mode);
		-- No product is more than the limit times the length.
		IF before > 0 AND length_ - passed > limit_ * length_ / before
			OR count_ + cost_ > (limit_ * length_ - before * (length_ - passed)) / length_
		THEN
			IF _mode = 0 THEN
				_do := false;
			ELSE -- when it would be allowed
				on_ := number * period - _now;
				IF count_ + cost_ <= limit_ THEN
					passed := before; length_ := (limit_ - count_ - cost_) * length_;
				ELSE
					on_ := on_ + period;
					passed := count_; length_ := (limit_ - cost_) * length_;
				END IF;
				IF passed > 0 THEN
					on_ := on_ + greatest(period / _n[4] - length_ / passed, 0) * _n[4];
				END IF;
				wait_ := greatest(on_, 0);
				cost_ := least(_cost, greatest(2 * limit_ - count_, 0));
			END IF;
			IF _mode = 0 THEN
				cost_ := -1; -- it is refused
			END IF;
		ELSIF _mode = 1 THEN
			cost_ := least(_cost, greatest(2 * limit_ - count_, 0));
		END IF;
	END IF;
	-- Act.
	IF _do THEN
		IF _mode <= 1 THEN
			IF _cost > 0 THEN
				changed := 1;
				IF cost_ > 0 THEN
					there := true;
					count_ := count_ + cost_;
					most := CASE WHEN greatest(before, count_) <= 2 * limit_ THEN limit_ ELSE greatest(most, limit_) END;
				END IF;
				IF _mode = 1 AND _cost > limit_ THEN
					passed := greatest(_now - number * period, 0) / _n[4];
					length_ := period / _n[4];
					IF before > 0 AND length_ - passed > limit_ * length_ / before
						OR count_ > (limit_ * length_ - before * (length_ - passed)) / length_
					THEN
						on_ := number * period - _now;
						IF count_ > limit_ THEN
							on_ := on_ + period; passed := count_; length_ := limit_ * length_;
						ELSE
							passed := before; length_ := (limit_ - count_) * length_;
						END IF;
						IF passed > 0 THEN
							on_ := on_ + greatest(period / _n[4] - length_ / passed, 0) * _n[4];
						END IF;
						wait_ := greatest(wait_, on_);
					END IF;
				END IF;
			END IF;
		ELSIF NOT there THEN
			NULL;
		ELSIF _mode = 3 THEN
			there := false; changed := 1;
		ELSIF _cost > 0 THEN
			changed := 1;
			on_ := (_at - (_at % period + period) % period) / period;
			IF on_ = number THEN
				count_ := count_ - least(count_, _cost);
			ELSIF on_ = number - 1 THEN
				before := before - least(before, _cost);
			END IF;
			there := before > 0 OR count_ > 0;
		END IF;
	END IF;
	IF NOT there THEN
		RETURN ARRAY[CASE WHEN cost_ < 0 THEN 0 ELSE 1 END, changed, 0, wait_];
	END IF;
	RETURN ARRAY[CASE WHEN cost_ < 0 THEN 0 ELSE 1 END, changed,
		CASE WHEN count_ > 0 THEN (number + 2) * period - _now WHEN before > 0 THEN (number + 1) * period - _now ELSE 0 END, wait_,
		2, period, number, most, before, count_];
END $$;

-- The numbers are 3, tokens, period, burst, how it waits, ahead, most, and q, r,
-- full and its fraction. It waits as a token bucket with 0, as a queue with 1, and
-- with w >= 2 as a queue whose turns may be w - 2 microseconds ahead. A length of time
-- is microseconds and a fraction whose denominator is t, the tokens: n tokens take
-- n * q + n * r / t of the first and n * r % t of the other. The burst takes full.
CREATE OR REPLACE FUNCTION baton_bucket_1(
	_n bigint[], s bigint[], _now bigint, _cost bigint, _mode int, _ahead bigint, _at bigint, _wait bigint, _do boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	t     CONSTANT bigint := _n[2];
	q     CONSTANT bigint := _n[8];
	r     CONSTANT bigint := _n[9];
	u     bigint := 0; -- what was taken and has not come back, as a time
	f     bigint := 0;
	n     bigint;
	x     bigint;
	y     bigint;
	mx    bigint;
	my    bigint;
	over  bigint;
	wait_ bigint := 0;
	changed int := 0;
BEGIN
	-- Settle.
	IF cardinality(s) = 6 AND s[2] >= _now AND s[1] = 3 AND s[4] >= 1 AND s[5] >= 1 AND s[3] >= 0 AND s[3] < s[4] AND s[6] >= 0
		AND (s[2] > _now OR s[3] > 0)
	THEN
		u := s[2] - _now; f := s[3];
		-- A state that says less than the burst is of a smaller burst, or of a version
		-- that kept only what was taken beyond it.
		n := s[6] + CASE WHEN s[6] < _n[4] THEN _n[4] ELSE 0 END;
		IF s[4] <> t OR s[5] <> _n[3] THEN -- another rate
			n := least(n, 9007199254740991 / s[4], 5007199254740991 / (s[5] / s[4] + 1));
			x := n * (s[5] / s[4]) + n * (s[5] % s[4]) / s[4]; y := n * (s[5] % s[4]) % s[4];
			IF (u, f) > (x, y) THEN -- a clock that was ahead
				u := x; f := y;
				changed := 1;
			END IF;
			n := least(div(u::numeric * s[4] + f + s[5] - 1, s[5]), n, _n[7]);
			u := n * q + n * r / t; f := n * r % t;
		ELSIF u >= _n[10] THEN
			n := least(n, _n[7]);
			x := n * q + n * r / t; y := n * r % t;
			IF (u, f) > (x, y) THEN
				u := x; f := y;
				changed := 1;
			END IF;
		END IF;
	END IF;
	-- Ask.
	IF _mode <= 1 AND _cost > 0 THEN
		n := least(_cost, _n[4] + 1 - _mode);
		y := f + n * r % t;
		x := u + n * q + n * r / t + y / t;
		y := y % t;
		IF x > _n[10] OR x = _n[10] AND y > _n[11] THEN
			over := x - _n[10] + (y > _n[11])::int;
			IF _mode = 1 OR _n[5] = 0 AND n <= _n[4] AND over <= _ahead
				AND (x, y) <= (_n[7] * q + _n[7] * r / t, _n[7] * r % t)
			THEN
				wait_ := over;
			ELSE
				over := -1; -- it is refused
			END IF;
		ELSIF _n[5] >= 1 THEN
			n := _n[6];
			wait_ := greatest(u - n * q - n * r / t + (f > n * r % t)::int, 0);
			IF _n[5] >= 2 AND wait_ > _n[5] - 2 AND _mode = 0 THEN
				over := -1; wait_ := 0;
			END IF;
		END IF;
	END IF;
	-- Act.
	IF NOT _do OR _cost = 0 AND _mode < 3 OR over = -1 THEN
		NULL;
	ELSIF _mode = 0 THEN
		u := x; f := y; changed := 1;
	ELSIF _mode = 1 THEN
		changed := 1;
		n := least(_cost, 2 * _n[4]);
		y := f + n * r % t;
		x := u + n * q + n * r / t + y / t; y := y % t;
		n := 2 * _n[4];
		mx := n * q + n * r / t; my := n * r % t;
		IF (x, y) <= (mx, my) THEN
			u := x; f := y;
		ELSIF (mx, my) > (u, f) THEN
			u := mx; f := my;
		END IF;
		IF _cost > _n[4] AND (u, f) > (_n[10], _n[11]) THEN
			wait_ := greatest(wait_, u - _n[10] + (f > _n[11])::int);
		END IF;
	ELSIF u = 0 AND f = 0 THEN
		NULL;
	ELSIF _mode = 3 THEN
		u := 0; f := 0; changed := 1;
	ELSE
		changed := 1;
		n := least(_cost, _n[7]);
		x := n * q + n * r / t; y := n * r % t;
		-- The freed room goes to the next request. It must not be given back if a later
		-- request already counts on it.
		IF _n[5] >= 1 THEN
			over := _n[6];
		ELSE
			over := _n[4]; n := greatest(n - over, 0);
		END IF;
		my := over * r % t + n * r % t;
		mx := over * q + over * r / t + n * q + n * r / t + my / t + _at + _wait - _now; my := my % t;
		IF (u, f) <= (over * q + over * r / t, over * r % t) OR (u, f) <= (mx, my) THEN
			IF (u, f) > (x, y) THEN
				u := u - x - (f < y)::int; f := (f - y + t) % t;
			ELSE
				u := 0; f := 0;
			END IF;
		END IF;
		over := NULL;
	END IF;
	IF u = 0 AND f = 0 THEN
		RETURN ARRAY[CASE WHEN over = -1 THEN 0 ELSE 1 END, changed, 0, wait_];
	END IF;
	n := _n[4]; -- the most tokens
	IF u > _n[10] OR u = _n[10] AND f > _n[11] THEN
		n := n + least(_n[7] - n, div((u - _n[10])::numeric * t + f - _n[11] + _n[3] - 1, _n[3]));
	END IF;
	RETURN ARRAY[CASE WHEN over = -1 THEN 0 ELSE 1 END, changed, u + (f > 0)::int, wait_, 3, _now + u, f, t, _n[3], n];
END $$;

-- baton_consumed_1 is how much of a state has not come back yet, under any limit, and
-- in how many microseconds all will have.
CREATE OR REPLACE FUNCTION baton_consumed_1(s bigint[], _now bigint, OUT n bigint, OUT back bigint) LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	n := 0; back := 0;
	IF s[1] = 1 AND s[2] >= 1 AND cardinality(s) > 2 AND cardinality(s) % 2 = 0 THEN
		FOR i IN 3 .. cardinality(s) BY 2 LOOP
			IF s[i] > _now THEN
				n := least(n + s[i + 1], 1125899906842624);
				back := greatest(back, s[i] - _now);
			END IF;
		END LOOP;
	ELSIF cardinality(s) <> 6 OR s[2] < 1 THEN
		NULL;
	ELSIF s[1] = 2 AND s[4] >= 1 AND s[3] < 9007199254740992 / s[2] - 2 THEN
		n := least(s[6] + CASE WHEN (s[3] + 1) * s[2] <= _now THEN 0 ELSE s[5] END, 1125899906842624);
		back := (s[3] + CASE WHEN s[6] > 0 THEN 2 ELSE 1 END) * s[2] - _now;
	ELSIF s[1] = 3 AND s[4] >= 1 AND s[5] >= 1 AND s[3] < s[4] AND s[2] >= _now THEN
		n := least(div((s[2] - _now)::numeric * s[4] + s[3] + s[5] - 1, s[5]),
			1125899906842624, 9007199254740991 / s[4], 5007199254740991 / (s[5] / s[4] + 1));
		back := s[2] - _now + (s[3] > 0)::int;
	END IF;
	IF n = 0 OR back <= 0 THEN
		n := 0; back := 0;
	END IF;
END $$;

-- baton_mixed_1 is a machine for a key of which something was taken under limits of
-- another kind. The state is that of the other kind, or 4 and then for each kind how
-- many numbers its state has, and the state. What was taken under another kind counts
-- until that kind would have given it back.
CREATE OR REPLACE FUNCTION baton_mixed_1(
	_n bigint[], s bigint[], _now bigint, _cost bigint, _mode int, _ahead bigint, _at bigint, _wait bigint, _do boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	capacity CONSTANT bigint := CASE _n[1] WHEN 3 THEN _n[4] ELSE _n[2] END;
	size   CONSTANT int := cardinality(s);
	from_  int := 1;
	to_    int := size;
	part   bigint[];
	own    bigint[] := '{}';
	there  boolean := false;
	before bigint[] := '{}'; -- the others, with their lengths
	after  bigint[] := '{}';
	lone   bigint[];
	others int := 0;
	more   bigint;
	till   bigint;
	n      bigint := 0;
	back_  bigint := 0;
	refused boolean := false;
	wait_  bigint := 0;
	cost_  bigint := _cost;
	a      bigint[];
BEGIN
	IF s[1] = 4 THEN
		from_ := 3; to_ := 2 + least(s[2], 2147480000);
	END IF;
	WHILE from_ <= to_ AND to_ <= size LOOP
		part := s[from_:to_];
		IF NOT there AND part[1] = _n[1] AND (part[1] <> 2 OR cardinality(part) = 6 AND part[2] = _n[3]) THEN
			there := true;
			IF baton_sane_1(part) THEN
				own := part;
			END IF;
		ELSE
			SELECT c.n, c.back INTO more, till FROM baton_consumed_1(part, _now) AS c;
			IF more > 0 THEN
				others := others + 1; lone := part;
				n := least(n + more, 1125899906842624); back_ := greatest(back_, till);
				IF there THEN
					after := after || cardinality(part)::bigint || part;
				ELSE
					before := before || cardinality(part)::bigint || part;
				END IF;
			END IF;
		END IF;
		EXIT WHEN s[1] <> 4 OR to_ >= size;
		from_ := to_ + 2; to_ := to_ + 1 + least(s[to_ + 1], 1000000000);
	END LOOP;
	IF _mode = 3 AND _do THEN
		RETURN ARRAY[1, (there OR others > 0)::int, 0, 0];
	END IF;
	IF _mode <= 1 AND _cost > 0 AND n > 0 AND (_mode = 1 OR _cost <= capacity) THEN
		cost_ := least(_cost, capacity);
		IF cost_ + n <= capacity THEN
			a := baton_machine_1(_n, own, _now, cost_ + n, _mode, _ahead, _at, _wait, false);
			refused := a[1] = 0; wait_ := a[4];
		ELSIF _mode = 0 THEN
			refused := true;
		ELSE
			a := baton_machine_1(_n, own, _now, cost_, _mode, _ahead, _at, _wait, false);
			wait_ := greatest(back_, a[4]);
		END IF;
	END IF;
	a := baton_machine_1(_n, own, _now, _cost, _mode, _ahead, _at, _wait, _do AND NOT refused);
	own := a[5:];
	IF refused THEN
		a[1] := 0; a[4] := 0;
	ELSIF a[1] = 1 THEN
		a[4] := greatest(wait_, a[4]);
	END IF;
	a[3] := greatest(a[3], back_);
	IF others = 0 THEN
		RETURN a[1:4] || own;
	ELSIF cardinality(own) = 0 THEN
		RETURN a[1:4] || CASE others WHEN 1 THEN lone ELSE 4::bigint || before || after END;
	END IF;
	RETURN a[1:4] || 4::bigint || before || cardinality(own)::bigint || own || after;
END $$;

CREATE OR REPLACE FUNCTION baton_machine_1(
	_n bigint[], s bigint[], _now bigint, _cost bigint, _mode int, _ahead bigint, _at bigint, _wait bigint, _do boolean
) RETURNS bigint[] LANGUAGE sql AS $$
	SELECT CASE _n[1]
		WHEN 1 THEN baton_window_1(_n, s, _now, _cost, _mode, _ahead, _at, _wait, _do)
		WHEN 2 THEN baton_estimate_1(_n, s, _now, _cost, _mode, _ahead, _at, _wait, _do)
		ELSE baton_bucket_1(_n, s, _now, _cost, _mode, _ahead, _at, _wait, _do) END
$$;

-- baton_brief_1 is a shorter state of a window that says the same about a request
-- that takes something if it is allowed: when something comes back, when enough for
-- the request has, and when all has.
CREATE OR REPLACE FUNCTION baton_brief_1(s bigint[], _now bigint, _cost bigint, _limit bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	size CONSTANT int := cardinality(s);
	i      int := 3;
	used   bigint;
	first  bigint;
	enough bigint;
	sum    bigint := 0;
	since  bigint := 0;
	brief  bigint[] := s[1:2];
BEGIN
	WHILE i <= size AND s[i] <= _now LOOP
		i := i + 2;
	END LOOP;
	IF i > size THEN
		RETURN '{}';
	END IF;
	used := (SELECT sum(s[j]) FROM generate_series(i + 1, size, 2) AS j);
	first := greatest(used - _limit, 0) + 1;
	enough := used + _cost - _limit;
	IF enough > used THEN
		enough := 0;
	END IF;
	WHILE i <= size LOOP
		sum := sum + s[i + 1]; since := since + s[i + 1];
		IF sum >= first AND sum - s[i + 1] < first OR sum >= enough AND sum - s[i + 1] < enough THEN
			brief := brief || ARRAY[s[i], since];
			since := 0;
			EXIT WHEN sum >= first AND sum >= enough;
		END IF;
		i := i + 2;
	END LOOP;
	IF since > 0 OR sum < used THEN
		brief := brief || ARRAY[s[size - 1], since + used - sum];
	END IF;
	RETURN brief;
END $$;
