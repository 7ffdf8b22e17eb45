-- Answers what is stored of one limit and changes nothing.
--
-- KEYS  1 the limit's state
-- Answers {seconds, µs, ms left or -1, the state}, or nothing if there is none. The
-- state is empty if it is longer than any limit's.

local size = redis.pcall('STRLEN', KEYS[1])
if type(size) ~= 'number' or size == 0 then
	return {}
end
local t = redis.call('TIME')
return {t[1], t[2], redis.call('PTTL', KEYS[1]), size < 1048576 and redis.call('GET', KEYS[1]) or ''}
