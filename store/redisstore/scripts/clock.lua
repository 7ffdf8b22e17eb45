-- Shared head of every script that draws a number: the counter.

-- Numbers of 16 digits: tostring and .. print 14 of them.
local function num(n)
	return string.format('%.0f', n)
end

local function micros()
	local t = redis.call('TIME')
	return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local AGES = 9e12 -- ms

-- seed begins a window at n. If that is ahead of the clock, the expiry of H, in
-- some 300 years, tells how long ago that was.
local function seed(T, H, n, ahead)
	redis.call('SET', T, num(n), 'PX', 140)
	local mark = num((math.floor(n / 131072) + 1) * 131072)
	if ahead then
		redis.call('SET', H, mark, 'PX', num(AGES - math.floor(n % 131072 / 1000)))
	else
		redis.call('SET', H, mark)
	end
	return n
end

-- reseed begins another window after INCR of T answered n: T is gone or used up.
local function reseed(T, H, n)
	local t = micros()
	if n < 1e15 then
		n = tonumber(redis.call('GET', H) or 0) or 0
		if n - t > 200000 then
			-- The clock was set back. Keep the counter's pace, or the positions of
			-- dead waiters would never expire.
			local left = redis.call('PTTL', H)
			if left > 0 then
				n = math.max(n, n - 131072 + (AGES - left) * 1000)
			end
		end
	end
	return seed(T, H, math.max(n, t), n - t > 200000)
end

-- tick draws the next number of the counter T: a token or a ticket, and at the
-- same time a coarse clock, in microseconds, at most 140 ms slow.
--
-- T dies 140 ms after it was seeded, so a promoted replica or an emptied
-- server seeds from its clock instead of counting on from an old value. H is
-- above every number ever drawn from T, so a clock that was set back does no
-- harm. Every number of a window is below the H written at its seed; a window
-- ends by T's expiry or by its 2^17th number, and the next one starts at
-- max(H, TIME) or later, or it is ended early by a seed at max(T, TIME).
local function tick(T, H)
	local n = redis.call('INCR', T)
	if n < 1e15 or n % 131072 == 0 then
		return reseed(T, H, n)
	end
	return n
end
