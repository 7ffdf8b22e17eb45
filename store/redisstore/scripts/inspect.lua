-- Answers all that is stored of a lock and changes nothing.
--
-- KEYS  1 lock  2 queue  3 waiters  4 shared  5 info
-- Answers {TIME µs, state, value, ttl ms, {entry…}, {id, deadline…} of the
-- waiters, {id, deadline…} of the shared holders, {id, info…} of the same}.

local k = {L = KEYS[1]}
local state, v = look(k)
local shared, info = {}, {}
if state == 'shared' then
	shared = call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES')
	info = call('HGETALL', KEYS[5])
elseif state == 'other' then
	local t = call('TYPE', k.L)
	v = type(t) == 'table' and t.ok or t
end
return {micros(), state, v or '', call('PTTL', k.L), call('LRANGE', KEYS[2], 0, -1), call('HGETALL', KEYS[3]), shared, info}
