-- Raises the counter, so that every later number is above a given one.
--
-- KEYS  1 T  2 H
-- ARGV  1 the number
-- Answers what every later number is above.

local T, H, floor = KEYS[1], KEYS[2], tonumber(ARGV[1])
local n = tonumber(redis.call('GET', T) or 0)
if n < floor then
	if n < 1e15 then -- gone, and the next number would be one of these
		n = math.max(tonumber(redis.call('GET', H) or 0), micros())
	end
	n = math.max(n, floor)
	seed(T, H, n)
end
return n
