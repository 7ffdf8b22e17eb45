-- rate.Window: q is kind, limit, part, life, offset, four boundaries.

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
kinds[1] = window

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
	local longest = max(life, s[2] - MARK)
	if s[n - 1] > at + longest then
		if longest > life then
			at = now + longest
		end
		local sum = 0
		while n > 2 and s[n - 1] >= at do
			sum = sum + s[n]
			s[n], s[n - 1] = nil, nil
			n = n - 2
		end
		s[n + 1], s[n + 2] = at, sum
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

function window.debt(q, s, now)
	local over = used(s) - q[2]
	return over > 0 and back(s, now, over) or 0
end

function window.take(q, s, now, cost)
	local at, life = ends(q, now)
	local n = #s
	if n == 0 then
		return {1, MARK + life, at, cost}
	elseif s[n - 1] <= at then
		s[2] = MARK + life
		if s[n - 1] == at then
			s[n] = s[n] + cost
		else
			s[n + 1], s[n + 2] = at, cost
		end
		return s
	elseif s[2] - MARK <= life then
		s[2] = MARK + life
		s[n] = s[n] + cost
		return s
	end
	local i = 3
	while s[i] < at do
		i = i + 2
	end
	if s[i] == at then
		s[i + 1] = s[i + 1] + cost
	else
		table.insert(s, i, cost)
		table.insert(s, i, at)
	end
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
	if at == 0 then
		while #s > 2 and s[4] <= cost do
			cost = cost - s[4]
			table.remove(s, 3)
			table.remove(s, 3)
		end
		if #s <= 2 then
			return {}
		end
		s[4] = s[4] - cost
		return s
	end
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

