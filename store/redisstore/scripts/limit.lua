-- Decides about rate limits.
--
-- KEYS  the states of the limits, and then, if the request has an ID, what is
--       remembered for that
-- ARGV  1 mode, µs it may wait, at, wait, ms to keep the ID for, or 0, now, or 0,
--       µs that its turn in a queue may be ahead
--       then for each limit its cost and the numbers of its algorithm
-- Answers as decide does.

local h = numbers(ARGV[1])
local names, all, id = {}, {}
for i = 2, #ARGV do
	names[i - 1], all[i - 1] = KEYS[i - 1], limit(ARGV[i])
end
if h[5] > 0 then
	id = KEYS[#KEYS]
end
local now, told = h[6], h[6] > 0
if not told then
	local t = call('TIME')
	now = t[1] * 1000000 + t[2]
end
return decide(names, id, all, now, told, h[1], h[2], h[7], h[3], h[4], h[5])
