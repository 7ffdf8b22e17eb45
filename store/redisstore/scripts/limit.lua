-- Decides about rate limits, as rate.Request.Decide does: one request after
-- another, all at the same moment.
--
-- KEYS  for each request: its limits' states, and then, if it has an ID, what
--       is remembered for that
-- ARGV  for each request: unless it is a simple one
--         r <limits> <mode> <µs it may wait> <at> <wait> <now> <ms to keep ID>
--       and for each of its limits, of which a simple one has one:
--         <cost> <numbers of the algorithm>
-- Answers for each request, or for the only one just that:
--   {at, for each limit: µs, remaining, next, reset}  decided. µs until its
--         turn; or if it is refused minus 1 minus those after which to retry,
--         minus 2^53 for never
--   {at, the same, left}  made earlier, for the same ID: µs that are left
--   {now}                 a limit has windows of a calendar, and now is in none
--   {n, type}             the request's nth key is no string

local IF_ALLOWED, ANYWAY, GIVE_BACK, FORGET = 0, 1, 2, 3
local REPLAY = 600000 -- ms that the traces of a request with its own clock live

local keys, states, parsed, changes = 0, {}, {}, {}
local clock

-- state reads a state once, however many of the requests are about it.
local function state(name)
	local k = states[name]
	if not k then
		local text = redis.pcall('GET', name)
		if type(text) == 'table' then
			return nil, text
		end
		k = {name = name, text = text, s = text and numbers(text) or {}}
		states[name] = k
	end
	return k
end

local function keep(k, ms)
	if not k.ms then
		changes[#changes + 1] = k
	end
	k.ms = ms
end

local function wrong(n, name, err)
	if find(err.err, 'WRONGTYPE', 1, true) then
		local t = call('TYPE', name)
		return {n, type(t) == 'table' and t.ok or t}
	end
	error(err.err, 0)
end

-- repeated tells how things stand. It keeps nothing, so it spoils nothing.
local function repeated(all, k, now, at, wait)
	local answer = {at}
	for i, q in ipairs(all) do
		local s = {}
		for n, v in ipairs(k[i].s) do
			s[n] = v
		end
		s = q.does.settle(q, s, now)
		local a = 4 * i - 2
		answer[a] = 0
		answer[a + 1], answer[a + 2], answer[a + 3] = q.does.status(q, s, now)
	end
	answer[#answer + 1] = max(at + wait - now, 0)
	return answer
end

local function decide(first, limits, arg, mode, ahead, at, wait, now, kept)
	local told = now > 0
	if not told then
		if not clock then
			local t = call('TIME')
			clock = t[1] * 1000000 + t[2]
		end
		now = clock
	end
	local all = {}
	for i = 1, limits do
		local text = ARGV[arg + i]
		local q = parsed[text]
		if not q then
			local cost
			q = numbers(text)
			cost = table.remove(q, 1)
			q.cost, q.does = cost, kinds[q[1]]
			q.capacity = q[1] == 3 and q[4] or q[2]
			parsed[text] = q
		end
		if q[1] == 1 and q[6] ~= 0 and (now < q[6] or now >= q[9]) then
			return {now}
		end
		all[i] = q
	end
	local k, converted = {}, false
	for i = 1, limits do
		local err
		k[i], err = state(KEYS[first + i])
		if err then
			return wrong(i, KEYS[first + i], err)
		end
	end
	local known
	if kept > 0 then
		local err
		known, err = state(KEYS[first + limits + 1])
		if err then
			return wrong(limits + 1, KEYS[first + limits + 1], err)
		end
	end
	if known and #known.s == 2 then
		return repeated(all, k, now, known.s[1], known.s[2])
	end
	local answer, ok, changed = {now}, true, false
	local s = {}
	for i = 1, limits do
		local q, does, cost = all[i], all[i].does, all[i].cost
		local c, yes, us
		s[i], c = does.settle(q, k[i].s, now)
		if mode > ANYWAY or cost == 0 then
			us = 0
		elseif mode == ANYWAY then
			yes, us = does.ask(q, s[i], now, min(cost, q.capacity), 0)
			changed = true
		elseif cost > q.capacity then
			us, ok = -EXACT, false
		else
			yes, us = does.ask(q, s[i], now, cost, ahead)
			changed = true
			if not yes then
				us, ok = -1 - us, false
			end
		end
		converted = converted or c
		answer[4 * i - 2] = us
	end
	changed = changed and ok
	local longest = 0
	for i = 1, limits do
		local q, does, cost = all[i], all[i].does, all[i].cost
		local x = s[i]
		if mode == FORGET then
			changed = changed or #x > 0
			x = {}
		elseif cost == 0 or not ok then
			x = s[i]
		elseif mode == IF_ALLOWED then
			x = does.take(q, x, now, cost)
		elseif mode == ANYWAY then
			x = does.charge(q, x, now, cost)
		elseif #x > 0 then
			x = does.give(q, x, now, cost, at, wait)
			changed = true
		end
		s[i] = x
		local a = 4 * i - 2
		answer[a + 1], answer[a + 2], answer[a + 3] = does.status(q, x, now)
		longest = max(longest, answer[a])
	end
	if changed or converted then
		for i = 1, limits do
			local ms = max(floor((answer[4 * i + 1] + 999) / 1000), 1)
			k[i].s = s[i]
			keep(k[i], told and max(ms, REPLAY) or ms)
		end
		if known and ok then
			known.s = {now, longest}
			keep(known, told and max(kept, REPLAY) or kept)
		end
	end
	return answer
end

local answers, arg = {}, 0
while arg < #ARGV do
	local header = ARGV[arg + 1]
	local n, limits, ids = #answers + 1, 1, 0
	if string.byte(header) == 114 then
		local h = numbers(string.sub(header, 2))
		limits, ids = h[1], h[7] > 0 and 1 or 0
		answers[n] = decide(keys, limits, arg + 1, h[2], h[3], h[4], h[5], h[6], h[7])
		arg = arg + 1
	else
		answers[n] = decide(keys, 1, arg, IF_ALLOWED, 0, 0, 0, 0, 0)
	end
	keys, arg = keys + limits + ids, arg + limits
end

-- All is decided. What fails now fails at the first of these.
for _, k in ipairs(changes) do
	local digits = {}
	for i, v in ipairs(k.s) do
		digits[i] = format('%.0f', v)
	end
	local text = concat(digits, ' ')
	if text == '' then
		if k.text then
			call('DEL', k.name)
		end
	elseif text ~= k.text then
		call('SET', k.name, text, 'PX', format('%.0f', k.ms))
	end
end
return #answers == 1 and answers[1] or answers
