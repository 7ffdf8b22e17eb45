-- Shared body of every script that has to look at the whole state of a lock.
-- k names its keys: L lock, T and H the counter, q queue, w deadlines of
-- waiters, s deadlines of shared holders, i what is known of shared holders.

local call = redis.call
local sub = string.sub
local ENTRY = '^(%d+)\t([^\t]+)\t([^\t]+)\t(%d+)\t([^\t]+)\t(.*)$'

-- now draws a number that is at most 20 ms slow, or 140 ms while the counter is ahead
-- of the clock. Deadlines of waiters count from it, because the counter does not go
-- back with the clock.
local function now(k)
	local n = tick(k.T, k.H)
	local t = micros()
	if t - n > 20000 then
		return seed(k.T, k.H, t)
	elseif n - t > 200000 and call('PTTL', k.T) > 140 then
		-- The clock was set back, and with it the moment at which T expires: the
		-- counter would stand still until then.
		return seed(k.T, k.H, n, true)
	end
	return n
end

-- parse reads what is wanted: 'x', 'r1' (a reader) or 'p2/10' (2 of 10).
-- It answers the weight, the capacity and the beginning of the value that the
-- lock has while such a claim is held, nothing for the exclusive one.
local function parse(want)
	local kind = sub(want, 1, 1)
	if kind == 'r' then
		return tonumber(sub(want, 2)), 1e15, 'b1:~readers:'
	elseif kind == 'p' then
		local weight, cap = string.match(want, '^p(%d+)/(%d+)$')
		return tonumber(weight), tonumber(cap), 'b1:~permits/' .. cap .. ':'
	end
end

-- look says what the lock's key holds: 'free'; 'whole', one holder; 'shared';
-- 'foreign', another program's string; 'other', a key of another type.
local function look(k)
	local v = redis.pcall('GET', k.L)
	if not v then
		return 'free'
	elseif type(v) ~= 'string' then
		return 'other'
	elseif sub(v, 1, 4) == 'b1:~' then
		return 'shared', v
	elseif sub(v, 1, 3) == 'b1:' then
		return 'whole', v
	end
	return 'foreign', v
end

-- used reads the sum of the weights out of the value of a shared lock.
local function used(v)
	return tonumber(string.match(v, ':(%d+)$')) or 0
end

-- less takes weight off a shared lock and answers its new value, or nothing if no
-- holder is left.
local function less(k, v, weight)
	if call('ZCARD', k.s) == 0 then
		call('DEL', k.L, k.s, k.i)
		return nil
	end
	if weight > 0 then
		v = string.match(v, '^(.*:)%d+$') .. num(math.max(used(v) - weight, 0))
		call('SET', k.L, v, 'KEEPTTL')
	end
	return v
end

-- settle removes the shared holders that have expired, then looks.
local function settle(k)
	local state, v = look(k)
	if state ~= 'shared' then
		return state, v
	end
	local weight = 0
	for _, id in ipairs(call('ZRANGEBYSCORE', k.s, '-inf', num(micros()))) do
		local held = call('HGET', k.i, id)
		weight = weight + (held and parse(string.match(held, '^[^\t]+')) or 1)
		call('ZREM', k.s, id)
		call('HDEL', k.i, id)
	end
	v = less(k, v, weight)
	if not v then
		return 'free'
	end
	return state, v
end

-- whole makes id the only holder.
local function whole(k, id, owner, token, ms)
	call('SET', k.L, 'b1:' .. id .. ':' .. num(token) .. ':' .. owner, 'PX', ms)
end

-- outlive makes the keys of shared holders last a minute longer than the lock's key,
-- which is given ms. They do not last for ever, because holders may crash.
local function outlive(k, ms)
	call('PEXPIRE', k.s, num(ms + 60000))
	call('PEXPIRE', k.i, num(ms + 60000))
end

-- join adds a shared holder. v is the lock's value, nothing if it is free. It
-- answers the new value; nothing if id holds already.
local function join(k, v, want, id, owner, token, ms)
	local weight, _, kind = parse(want)
	local left, sum = 0, 0
	if v then
		left, sum = call('PTTL', k.L), used(v)
	else
		-- A client of another program may have deleted the lock and left these.
		call('DEL', k.s, k.i)
	end
	if call('ZADD', k.s, 'NX', num(micros() + ms * 1000), id) == 0 then
		return nil
	end
	v = kind .. num(sum + weight)
	call('SET', k.L, v, 'PX', math.max(left, ms))
	call('HSET', k.i, id, want .. '\t' .. num(token) .. '\t' .. owner)
	outlive(k, math.max(left, ms))
	return v
end

-- fits says whether want can be granted beside the present holders.
local function fits(state, v, want)
	if state == 'free' then
		return true
	elseif state ~= 'shared' then
		return false
	end
	local weight, cap, kind = parse(want)
	return kind ~= nil and sub(v, 1, #kind) == kind and used(v) + weight <= cap
end

-- alive says whether the waiter with this entry has been heard of lately.
local function alive(k, stamp, id, time)
	if tonumber(stamp) + WAITER > time then
		return true
	end
	local later = call('HGET', k.w, id)
	return later and tonumber(later) > time
end

-- grantWaiters grants the waiters at the head of the queue that are alive and fit, and
-- tells their processes. It removes waiters that have expired, and those that hold
-- already: an attempt that came late leaves a second entry.
local function grantWaiters(k)
	if call('EXISTS', k.q) == 0 then
		return
	end
	local state, v = settle(k)
	if state ~= 'free' and state ~= 'shared' then
		return
	end
	local time = now(k)
	local token = time
	while true do
		local e = call('LPOP', k.q)
		if not e then
			return
		end
		local stamp, id, want, ms, channel, owner = string.match(e, ENTRY)
		local lives = stamp and alive(k, stamp, id, time)
		if lives and not fits(state, v, want) then
			call('LPUSH', k.q, e)
			call('EXPIRE', k.q, 60) -- the pop may have deleted the key
			return
		end
		if stamp then
			call('HDEL', k.w, id)
		end
		if lives then
			token = token or tick(k.T, k.H)
			local granted = want
			if want == 'x' then
				whole(k, id, owner, token, ms)
				state = 'whole'
			else
				granted = join(k, v, want, id, owner, token, tonumber(ms))
				v = granted or v
				state = 'shared'
			end
			if granted then
				redis.pcall('PUBLISH', channel, 'g\t' .. id .. '\t' .. num(token) .. '\t' .. ms)
				token = nil
			end
			if state == 'whole' then
				return
			end
		end
	end
end

-- evenIfFull makes Redis carry the script out though its memory is full: it refuses only
-- the first write of a script, and this one needs no memory. No ID is empty.
local function evenIfFull(k)
	call('ZREM', k.s, '')
end

-- confirm renews what id holds and answers its token, or nothing if it does not hold.
-- If the caller was told that token the claim ends ms from now. Otherwise the end only
-- moves later: a late request of a waiter must not shorten its grant. It may be another
-- grant than the one that the caller was told of, by an attempt that came late.
local function confirm(k, id, ms, told)
	local state, v = look(k)
	if state == 'whole' then
		local own = 'b1:' .. id .. ':'
		local token = sub(v, 1, #own) == own and tonumber(string.match(v, '^%d+', #own + 1))
		if not token then
			return nil
		end
		if token == told or call('PTTL', k.L) < tonumber(ms) then
			call('PEXPIRE', k.L, ms)
		end
		return token
	elseif state == 'shared' then
		local held = call('HGET', k.i, id)
		local deadline = held and call('ZSCORE', k.s, id)
		local now = deadline and micros()
		if not deadline or tonumber(deadline) <= now then
			return nil
		end
		local token = tonumber(string.match(held, '^[^\t]+\t(%d+)'))
		evenIfFull(k)
		call('ZADD', k.s, num(math.max(token == told and 0 or tonumber(deadline), now + ms * 1000)), id)
		if call('PTTL', k.L) < tonumber(ms) then
			call('PEXPIRE', k.L, ms)
			outlive(k, tonumber(ms))
		end
		return token
	end
end

-- queued says whether the queue has this entry. Entries are in the order of their
-- tickets, so a long queue is searched by halves. After the counter was lost they may
-- be out of order; then all of the queue is read.
local function queued(k, entry)
	local first, last = 0, call('LLEN', k.q) - 1
	local ticket = last > 200 and tonumber(string.match(entry, '^%d+'))
	while ticket and first <= last do
		local middle = math.floor((first + last) / 2)
		local e = call('LINDEX', k.q, middle)
		if e == entry then
			return true
		end
		local other = tonumber(string.match(e, '^%d+'))
		if not other then
			break
		elseif other < ticket then
			first = middle + 1
		else
			last = middle - 1
		end
	end
	return call('LPOS', k.q, entry)
end

-- find answers the queue's entry of id and its ticket, nothing if there is none
-- that is alive. The text of the entry, if the caller can tell it, saves
-- reading the whole queue.
local function find(k, id, entry)
	local found = entry ~= '' and queued(k, entry) and entry
	if not found then
		for _, e in ipairs(call('LRANGE', k.q, 0, -1)) do
			local _, other = string.match(e, ENTRY)
			if other == id then
				found = e
				break
			end
		end
	end
	if not found then
		return nil
	end
	local ticket = string.match(found, '^%d+')
	if alive(k, ticket, id, now(k)) then
		return found, tonumber(ticket)
	end
	call('LREM', k.q, 1, found)
	call('HDEL', k.w, id)
end

-- stay keeps a waiter alive. A waiter that is granted soon never gets here, so most
-- waiters have no deadline in w.
local function stay(k, id)
	local time = now(k)
	call('HSET', k.w, id, num(time + WAITER))
	call('EXPIRE', k.w, 60)
	call('EXPIRE', k.q, 60)
	-- release.lua does not remove a waiter that it grants from w.
	if call('HLEN', k.w) > 64 + 4 * call('LLEN', k.q) then
		local all = call('HGETALL', k.w)
		for n = 1, #all, 2 do
			if tonumber(all[n + 1]) <= time then
				call('HDEL', k.w, all[n])
			end
		end
	end
end

-- waiting is the answer to a waiter: its ticket, whether a foreign program
-- holds, and for how many ms at most nothing expires.
local function waiting(k, ticket)
	local state = look(k)
	local left = call('PTTL', k.L)
	if state == 'shared' then
		local first = call('ZRANGE', k.s, 0, 0, 'WITHSCORES')[2]
		if first then
			left = math.min(left, math.floor((tonumber(first) - micros()) / 1000))
		end
	end
	return {2, ticket, state == 'foreign' and 1 or 0, left}
end
