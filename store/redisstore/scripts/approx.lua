-- rate.Approx: q is kind, limit, period, grain.

local approx = {}
kinds[2] = approx

local function index(period, now)
	return div(now, period)
end

function approx.settle(q, s, now)
	if #s ~= 6 or s[1] ~= 2 or s[2] ~= q[3] or s[4] < 1 then
		return {}, false
	end
	local at = index(q[3], now)
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

-- free is what the window before has left of the limit, below 0 if nothing. No
-- product is more than the limit times the length.
local function free(q, before, passed, length)
	local rest, all = length - passed, q[2] * length
	if before > 0 and rest > div(all, before) then
		return -1
	end
	return div(all - before * rest, length)
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
	local remaining = max(free(q, before, passed, length) - count, 0)
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
	if count + cost <= free(q, before, passed, length) then
		return true, 0
	end
	return false, retry(q, s, now, cost)
end

function approx.debt(q, s, now)
	if #s == 0 or approx.ask(q, s, now, 0) then
		return 0
	end
	return retry(q, s, now, 0)
end

function approx.take(q, s, now, cost)
	if #s == 0 then
		s = {2, q[3], index(q[3], now), q[2], 0, 0}
	end
	s[6] = s[6] + cost
	if max(s[5], s[6]) <= 2 * q[2] then
		s[4] = q[2]
	else
		s[4] = max(s[4], q[2])
	end
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
	if at == 0 then
		local old = min(s[5], cost)
		s[5], s[6] = s[5] - old, s[6] - min(s[6], cost - old)
	elseif i == s[3] then
		s[6] = s[6] - min(s[6], cost)
	elseif i == s[3] - 1 then
		s[5] = s[5] - min(s[5], cost)
	end
	if s[5] == 0 and s[6] == 0 then
		return {}
	end
	return s
end

