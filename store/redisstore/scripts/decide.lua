-- decide answers one request as rate.Request.Decide does, and keeps what
-- becomes of it. It fails, if at all, before it has changed anything.
--
-- names are the keys of the states. id is the key of what is remembered for the
-- request's ID, if it has one. all are the parameters of the limits, each with its
-- cost and its functions. told says that now is not the server's. It answers:
--
--   {at, for each limit: µs, remaining, next, reset}  decided. µs until its
--         turn; or if it is refused minus 1 minus those after which to retry,
--         minus 2^53 for never
--   {at, the same, left}  made earlier, for the same ID: µs that are left
--   {now}                 a limit has windows of a calendar, and now is in none
--   {n, type}             the request's nth key is no string

local IF_ALLOWED, ANYWAY, GIVE_BACK, FORGET = 0, 1, 2, 3
local REPLAY = 600000 -- ms that the traces of a request with its own clock live

-- limit reads parameters, of which the first is the cost.
local function limit(text)
	local q = numbers(text)
	local cost = table.remove(q, 1)
	q.cost, q.does = cost, kinds[q[1]]
	q.capacity = q[1] == 3 and q[4] or q[2]
	return q
end

-- state answers the text of a state and what it says; or nothing and an error.
local function state(name)
	local text = redis.pcall('GET', name)
	if type(text) == 'table' then
		return nil, text
	end
	return text, text and numbers(text) or {}
end

local function wrong(n, name, err)
	if find(err.err, 'WRONGTYPE', 1, true) then
		local t = call('TYPE', name)
		return {n, type(t) == 'table' and t.ok or t}
	end
	error(err.err, 0)
end

local function keep(name, text, s, ms)
	local digits = {}
	for i, v in ipairs(s) do
		digits[i] = format('%.0f', v)
	end
	local new = concat(digits, ' ')
	if new == '' then
		if text then
			call('DEL', name)
		end
	elseif new ~= text then
		call('SET', name, new, 'PX', format('%.0f', ms))
	else -- it may have no expiry
		call('PEXPIRE', name, format('%.0f', ms))
	end
end

-- ask asks q's kind, where others of the capacity were consumed under other kinds of
-- limits; all of that has come back after back µs.
local function ask(q, s, now, cost, ahead, others, back)
	if others == 0 then
		return q.does.ask(q, s, now, cost, ahead)
	elseif cost + others <= q.capacity then
		return q.does.ask(q, s, now, cost + others, ahead)
	end
	local _, us = q.does.ask(q, s, now, cost, ahead)
	return false, max(back, us)
end

local function decide(names, id, all, now, told, mode, ahead, within, at, wait, kept)
	for _, q in ipairs(all) do
		if q[1] == 1 and q[6] ~= 0 and (now < q[6] or now >= q[9]) then
			return {now}
		end
	end
	local texts, s = {}, {}
	for i, name in ipairs(names) do
		texts[i], s[i] = state(name)
		if texts[i] == nil then
			return wrong(i, name, s[i])
		end
	end
	local known, first
	if id then
		known, first = state(id)
		if known == nil then
			return wrong(#names + 1, id, first)
		elseif #first ~= 2 then
			first = nil
		end
	end
	local answer, ok, changed, converted = {now}, true, false, false
	local others, theirs, back = {}, {}, {}
	for i, q in ipairs(all) do
		local us, c, yes
		s[i], others[i], theirs[i], back[i] = split(q, s[i], now)
		local most = q[1] == 3 and q[5] == 1 and within or ahead
		s[i], c = q.does.settle(q, s[i], now)
		if first or mode > ANYWAY or q.cost == 0 then
			us = 0
		elseif mode == ANYWAY then
			yes, us = ask(q, s[i], now, min(q.cost, q.capacity), most, theirs[i], back[i])
			if theirs[i] > 0 then
				local _, alone = q.does.ask(q, s[i], now, min(q.cost, q.capacity), most)
				us = max(us, alone)
			end
			changed = true
		elseif q.cost > q.capacity then
			us, ok = -EXACT, false
		else
			yes, us = ask(q, s[i], now, q.cost, most, theirs[i], back[i])
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
	for i, q in ipairs(all) do
		local x = s[i]
		if first then
			x = s[i] -- as it is; nothing is kept
		elseif mode == FORGET then
			changed = changed or #x > 0 or others[i] ~= nil
			x, others[i], theirs[i] = {}, nil, 0
		elseif q.cost == 0 or not ok then
			x = s[i]
		elseif mode == IF_ALLOWED then
			x = q.does.take(q, x, now, q.cost)
		elseif mode == ANYWAY then
			x = q.does.charge(q, x, now, q.cost)
			if q.cost > q.capacity then
				answer[4 * i - 2] = max(answer[4 * i - 2], q.does.debt(q, x, now))
			end
		elseif #x > 0 then
			x = q.does.give(q, x, now, q.cost, at, wait)
			changed = true
		end
		local a = 4 * i - 2
		local remaining, next, reset = q.does.status(q, x, now)
		if theirs[i] > 0 then
			remaining, next, reset = max(remaining - theirs[i], 0), max(next, back[i]), max(reset, back[i])
		end
		answer[a + 1], answer[a + 2], answer[a + 3] = remaining, next, reset
		s[i] = join(x, others[i])
		longest = max(longest, answer[a])
	end
	if first then
		answer[1] = first[1]
		answer[#answer + 1] = max(first[1] + first[2] - now, 0)
	elseif changed or converted then
		for i, name in ipairs(names) do
			local ms = max(floor((answer[4 * i + 1] + 999) / 1000), 1)
			keep(name, texts[i], s[i], told and max(ms, REPLAY) or ms)
		end
		if id and ok then
			keep(id, known, {now, longest}, told and max(kept, REPLAY) or kept)
		end
	end
	return answer
end

