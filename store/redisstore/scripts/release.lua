-- Releases an exclusive lock and grants it to the head of the queue, if that is
-- an exclusive waiter that has joined lately: the path that must be fast.
-- Everything else is left to end.lua. release_one.lua does the same for
-- combined.lua. This file comes before all functions, as enqueue.lua does.
--
-- KEYS  1 lock  2 T  3 queue
-- ARGV  1 the beginning of the holder's value, "b1:<id>:"
-- Answers 1: released; 0: not held; -1: not handled here.

local e
do
	local v, own = redis.pcall('GET', KEYS[1]), ARGV[1]
	if type(v) ~= 'string' or string.sub(v, 1, #own) ~= own then
		return 0
	end
	e = redis.call('LPOP', KEYS[3])
	if not e then
		redis.call('DEL', KEYS[1])
		return 1
	end
end
