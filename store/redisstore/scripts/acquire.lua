-- Acquires an exclusive lock that is free and has no waiters: the path that must
-- be fast. Everything else is left to enter.lua. acquire_one.lua does the same for
-- combined.lua. This file comes before all functions, as enqueue.lua does.
--
-- KEYS  1 lock  2 T  3 H  4 queue
-- ARGV  1 the lock's value before the token: "b1:<id>:"  2 ttl, ms  3 after it: ":<owner>"
-- Answers the token, or -1: not handled here.

local n
do
	local call = redis.call
	if call('EXISTS', KEYS[1], KEYS[4]) > 0 then
		return -1
	end
	n = call('INCR', KEYS[2])
	if n >= 1e15 and n % 131072 ~= 0 then
		-- The server tells its digits sooner than Lua prints them. A server whose clock
		-- runs on during a script may have no counter any more.
		call('SET', KEYS[1], ARGV[1] .. (call('GET', KEYS[2]) or string.format('%.0f', n)) .. ARGV[3], 'PX', ARGV[2])
		return n
	end
end
