-- rate.Bucket: q is kind, tokens, period, burst, queue, ahead, most. A span is
-- two numbers: µs, and a fraction with the denominator tokens.

local bucket = {}
kinds[3] = bucket

local function plus(q, us, frac, more, fraction)
	us, frac = us + more, frac + fraction
	if frac >= q[2] then
		return us + 1, frac - q[2]
	end
	return us, frac
end

local function minus(q, us, frac, less, fraction)
	us, frac = us - less, frac - fraction
	if frac < 0 then
		return us - 1, frac + q[2]
	end
	return us, frac
end

local function ceil(us, frac)
	if frac > 0 then
		return us + 1
	end
	return us
end

-- fit is how many whole tokens a span is long, at most most.
local function fit(q, us, frac, most)
	local n = whole(q[2], q[3], us, frac, most)
	local a, b = of(q[2], q[3], n)
	if longer(a, b, us, frac) then
		return n - 1
	end
	return n
end

local function set(q, now, us, frac)
	local most = q[4]
	local full, fraction = of(q[2], q[3], q[4])
	if longer(us, frac, full, fraction) then
		local a, b = minus(q, us, frac, full, fraction)
		most = most + whole(q[2], q[3], a, b, q[7] - q[4])
	end
	return {3, now + us, frac, q[2], q[3], most}
end

local function out(s, now)
	if #s == 0 then
		return 0, 0
	end
	return s[2] - now, s[3]
end

function bucket.settle(q, s, now)
	if #s ~= 6 or s[1] ~= 3 or s[4] < 1 or s[5] < 1 or s[3] >= s[4] then
		return {}, false
	end
	local us, frac = out(s, now)
	if us < 0 or us == 0 and frac == 0 then
		return {}, false
	end
	local t, p, most, converted = q[2], q[3], q[7], false
	if s[4] ~= t or s[5] ~= p then
		t, p = s[4], s[5]
		most = mosttokens(t, p)
	end
	-- A state that says less than the burst is of a smaller burst, or of a version
	-- that kept only what was taken beyond it.
	most = min(s[6] < q[4] and s[6] + q[4] or s[6], most)
	local longest, fraction = of(t, p, most)
	if longer(us, frac, longest, fraction) then
		us, frac, converted = longest, fraction, true
	end
	if t ~= q[2] or p ~= q[3] then
		us, frac = of(q[2], q[3], min(whole(t, p, us, frac, most), q[7]))
	end
	return set(q, now, us, frac), converted
end

function bucket.status(q, s, now)
	local us, frac = out(s, now)
	local full, fraction = of(q[2], q[3], q[4])
	local remaining, next = 0, 0
	if not longer(us, frac, full, fraction) then
		local a, b = minus(q, full, fraction, us, frac)
		remaining = fit(q, a, b, q[4])
	end
	if remaining < q[4] then
		local a, b = plus(q, us, frac, of(q[2], q[3], remaining + 1))
		next = ceil(minus(q, a, b, full, fraction))
	end
	return remaining, next, ceil(us, frac)
end

function bucket.ask(q, s, now, cost, ahead)
	local us, frac = out(s, now)
	local a, b = plus(q, us, frac, of(q[2], q[3], cost))
	local over = ceil(minus(q, a, b, of(q[2], q[3], q[4])))
	if q[5] == 1 then
		local wait = max(ceil(minus(q, us, frac, of(q[2], q[3], q[6]))), 0)
		if over <= 0 and wait <= ahead then
			return true, wait
		end
		return false, max(over, wait - ahead)
	elseif over <= 0 then
		return true, 0
	elseif over <= ahead and not longer(a, b, of(q[2], q[3], q[7])) then
		return true, over
	end
	return false, over
end

function bucket.debt(q, s, now)
	local us, frac = out(s, now)
	return max(ceil(minus(q, us, frac, of(q[2], q[3], q[4]))), 0)
end

function bucket.take(q, s, now, cost)
	local us, frac = out(s, now)
	return set(q, now, plus(q, us, frac, of(q[2], q[3], cost)))
end

function bucket.charge(q, s, now, cost)
	local us, frac = out(s, now)
	local a, b = plus(q, us, frac, of(q[2], q[3], min(cost, 2 * q[4])))
	local most, fraction = of(q[2], q[3], 2 * q[4])
	if longer(a, b, most, fraction) then
		a, b = us, frac
		if longer(most, fraction, us, frac) then
			a, b = most, fraction
		end
	end
	return set(q, now, a, b)
end

function bucket.give(q, s, now, cost, at, wait)
	cost = min(cost, q[7])
	local us, frac = out(s, now)
	local a, b = of(q[2], q[3], cost)
	if not longer(us, frac, a, b) then
		a, b = us, frac
	end
	local behind, own = q[4], max(cost - q[4], 0)
	if q[5] == 1 then
		behind, own = q[6], cost
	end
	local last, fraction = of(q[2], q[3], behind)
	if longer(us, frac, last, fraction) then
		last, fraction = plus(q, last, fraction, of(q[2], q[3], own))
		if longer(us, frac, last + (at + wait - now), fraction) then
			return s
		end
	end
	a, b = minus(q, us, frac, a, b)
	if a == 0 and b == 0 then
		return {}
	end
	return set(q, now, a, b)
end

