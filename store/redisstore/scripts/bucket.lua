-- rate.Bucket: q is kind, tokens, period, burst, queue, ahead, most. A span is
-- two numbers: µs, and a fraction with the denominator tokens.

local bucket = {}
kinds[3] = bucket

local function of(tokens, period, n)
	local r = fmod(period, tokens)
	local x = n * r
	local frac = fmod(x, tokens)
	return n * ((period - r) / tokens) + (x - frac) / tokens, frac
end

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

local function longer(us, frac, than, fraction)
	return us > than or us == than and frac > fraction
end

local function ceil(us, frac)
	if frac > 0 then
		return us + 1
	end
	return us
end

-- whole is how many tokens it takes to be as long as a span, at most most. The
-- guess is off by two at worst.
local function whole(tokens, period, us, frac, most)
	local n = min(floor((us * tokens + frac) / period), most)
	for _ = 1, 4 do
		if n > 0 and not longer(us, frac, of(tokens, period, n - 1)) then
			n = n - 1
		end
	end
	for _ = 1, 4 do
		if n < most and longer(us, frac, of(tokens, period, n)) then
			n = n + 1
		end
	end
	return n
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
	local beyond = 0
	local full, fraction = of(q[2], q[3], q[4])
	if longer(us, frac, full, fraction) then
		local a, b = minus(q, us, frac, full, fraction)
		beyond = whole(q[2], q[3], a, b, q[7])
	end
	return {3, now + us, frac, q[2], q[3], beyond}
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
	local beyond, converted = min(s[6], q[7] - q[4]), false
	if s[4] ~= q[2] or s[5] ~= q[3] then
		us, frac = of(q[2], q[3], whole(s[4], s[5], us, frac, q[4]))
		beyond, converted = 0, true
	end
	local most, fraction = of(q[2], q[3], q[4] + beyond)
	if longer(us, frac, most, fraction) then
		us, frac, converted = most, fraction, true
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

