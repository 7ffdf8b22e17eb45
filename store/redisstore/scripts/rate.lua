-- What package rate does. States and parameters are its own, from index 1. All
-- numbers are integers below 2^53: of these + - * and fmod are exact, and so
-- is the division of a multiple. A quotient is no more than a guess.

local call, fmod, floor, min, max = redis.call, math.fmod, math.floor, math.min, math.max
local gmatch, find, format, concat = string.gmatch, string.find, string.format, table.concat

local EXACT = 9007199254740992 -- 2^53

-- div rounds towards zero.
local function div(a, b)
	return (a - fmod(a, b)) / b
end

local function modulo(a, b)
	local m = fmod(a, b)
	if m < 0 then
		return m + b
	end
	return m
end

-- numbers reads a list of them, nothing if it is none.
local function numbers(text)
	if find(text, '[^%d ]') then
		return nil
	end
	local list, n = {}, 0
	for digits in gmatch(text, '%d+') do
		local v = tonumber(digits)
		if v >= EXACT then
			return nil
		end
		n = n + 1
		list[n] = v
	end
	return list
end

-- The windows: q is kind, limit, part, life, offset, four boundaries.

local function ends(q, now)
	if q[6] ~= 0 then
		local i = 7
		while i < 9 and q[i] <= now do
			i = i + 1
		end
		return q[i], q[i] - q[i - 1]
	end
	return now - modulo(now - q[5], q[3]) + q[4], q[4]
end

local function drop(s, first)
	if first == 3 then
		return s
	elseif first > #s then
		return {}
	end
	local rest = {s[1], s[2]}
	for i = first, #s do
		rest[i - first + 3] = s[i]
	end
	return rest
end

local function used(s)
	local n = 0
	for i = 4, #s, 2 do
		n = n + s[i]
	end
	return n
end

local function back(s, now, n)
	for i = 3, #s, 2 do
		n = n - s[i + 1]
		if n <= 0 then
			return s[i] - now
		end
	end
	return 0
end

local window = {}

function window.settle(q, s, now)
	local n = #s
	if n <= 2 or n % 2 == 1 or s[1] ~= 1 or s[2] < 1 then
		return {}, false
	end
	local first = 3
	while first <= n and s[first] <= now do
		first = first + 2
	end
	if first > n then
		return {}, false
	end
	local converted = false
	s = drop(s, first)
	n = #s
	local at, life = ends(q, now)
	if s[n - 1] > at + life then
		local sum = 0
		while n > 2 and s[n - 1] >= at do
			sum = sum + s[n]
			s[n], s[n - 1] = nil, nil
			n = n - 2
		end
		s[n + 1], s[n + 2] = at, sum
		converted = true
	end
	if s[2] ~= q[2] then
		local over = used(s) - q[2]
		first = 3
		while over > 0 and first < #s do
			local cut = min(over, s[first + 1])
			over = over - cut
			s[first + 1] = s[first + 1] - cut
			if s[first + 1] == 0 then
				first = first + 2
			end
		end
		s = drop(s, first)
		if #s > 0 then
			s[2] = q[2]
		end
		converted = true
	end
	return s, converted
end

function window.status(q, s, now)
	local n = used(s)
	if n <= 0 then
		return q[2], 0, 0
	end
	return max(q[2] - n, 0), back(s, now, max(n - q[2], 0) + 1), s[#s - 1] - now
end

function window.ask(q, s, now, cost)
	local over = used(s) + cost - q[2]
	if over > 0 then
		return false, back(s, now, over)
	end
	return true, 0
end

function window.take(q, s, now, cost)
	local at, n = ends(q, now), #s
	if n > 2 and s[n - 1] >= at then
		s[n] = s[n] + cost
		return s
	elseif n == 0 then
		return {1, q[2], at, cost}
	end
	s[n + 1], s[n + 2] = at, cost
	return s
end

function window.charge(q, s, now, cost)
	cost = min(cost, 2 * q[2] - used(s))
	if cost <= 0 then
		return s
	end
	return window.take(q, s, now, cost)
end

function window.give(q, s, now, cost, at)
	at = ends(q, at)
	for i = 3, #s, 2 do
		if s[i] == at then
			if s[i + 1] > cost then
				s[i + 1] = s[i + 1] - cost
			elseif #s == 4 then
				return {}
			else
				table.remove(s, i)
				table.remove(s, i)
			end
			return s
		end
	end
	return s
end

-- The estimate: q is kind, limit, period, grain.

local approx = {}

local function index(period, now)
	return div(now, period)
end

local function turn(period, s, now) -- to the present window
	local at = index(period, now)
	local on = at - s[3]
	if on >= 2 or on == 1 and s[6] == 0 then
		return {}, false
	elseif on == 1 then
		s[3], s[5], s[6] = at, s[6], 0
	elseif on < -1 then
		s[3], s[5], s[6] = at, 0, min(s[5] + s[6], 2 * s[4])
		return s, true
	end
	return s, false
end

function approx.settle(q, s, now)
	if #s ~= 6 or s[1] ~= 2 or s[2] < 1 or s[4] < 1 then
		return {}, false
	end
	local converted = false
	if s[2] ~= q[3] then
		s = turn(s[2], s, now)
		if #s == 0 then
			return s, false
		end
		s[2], s[3], s[5], s[6], converted = q[3], index(q[3], now), 0, s[5] + s[6], true
	end
	local turned
	s, turned = turn(q[3], s, now)
	if #s == 0 then
		return s, false
	end
	if s[4] ~= q[2] then
		s[4], s[5], s[6], turned = q[2], min(s[5], q[2]), min(s[6], q[2]), true
	end
	return s, converted or turned
end

-- parts answers the counts before and now, how much has passed, and the length.
local function parts(q, s, now)
	local length = q[3] / q[4]
	if #s == 0 then
		return 0, 0, div(fmod(now, q[3]), q[4]), length
	end
	return s[5], s[6], div(max(now - s[3] * q[3], 0), q[4]), length
end

local function retry(q, s, now, cost)
	local before, count, _, length = parts(q, s, now)
	local begin = s[3] * q[3]
	if count + cost > q[2] then
		begin = begin + q[3]
		before, count = count, 0
	end
	local at = 0
	if before > 0 then
		at = max(length - div((q[2] - count - cost) * length, before), 0)
	end
	return begin + at * q[4] - now
end

function approx.status(q, s, now)
	if #s == 0 then
		return q[2], 0, 0
	end
	local before, count, passed, length = parts(q, s, now)
	local remaining = max(div(q[2] * length - before * (length - passed), length) - count, 0)
	local begin, reset, next = s[3] * q[3], 0, 0
	if count > 0 then
		reset = begin + 2 * q[3] - now
	elseif before > 0 then
		reset = begin + q[3] - now
	end
	if remaining < q[2] then
		next = retry(q, s, now, remaining + 1)
	end
	return remaining, next, reset
end

function approx.ask(q, s, now, cost)
	local before, count, passed, length = parts(q, s, now)
	if before * (length - passed) + (count + cost) * length <= q[2] * length then
		return true, 0
	end
	return false, retry(q, s, now, cost)
end

function approx.take(q, s, now, cost)
	if #s == 0 then
		return {2, q[3], index(q[3], now), q[2], 0, cost}
	end
	s[6] = s[6] + cost
	return s
end

function approx.charge(q, s, now, cost)
	if #s > 0 then
		cost = min(cost, max(2 * q[2] - s[6], 0))
	end
	if cost <= 0 then
		return s
	end
	return approx.take(q, s, now, min(cost, 2 * q[2]))
end

function approx.give(q, s, now, cost, at)
	local i = index(q[3], at)
	if i == s[3] then
		s[6] = s[6] - min(s[6], cost)
	elseif i == s[3] - 1 then
		s[5] = s[5] - min(s[5], cost)
	end
	if s[5] == 0 and s[6] == 0 then
		return {}
	end
	return s
end

-- The buckets: q is kind, tokens, period, burst, queue, ahead, most. A span is
-- two numbers: µs, and a fraction with the denominator tokens.

local bucket = {}

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
	if over <= 0 then
		if q[5] == 1 then
			return true, max(ceil(minus(q, us, frac, of(q[2], q[3], q[6]))), 0)
		end
		return true, 0
	elseif q[5] == 0 and over <= ahead and not longer(a, b, of(q[2], q[3], q[7])) then
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

local kinds = {window, approx, bucket}
