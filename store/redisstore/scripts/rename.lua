-- Changes the owner that is shown for what an ID holds, and nothing else.
--
-- KEYS  1 lock  2 T  3 H  4 queue  5 waiters  6 shared  7 info
-- ARGV  1 id  2 the new owner
-- Answers 1: changed; 0: not held.

local k = {L = KEYS[1], s = KEYS[6], i = KEYS[7]}
local id, owner = ARGV[1], ARGV[2]

evenIfFull(k)
local state, v = look(k)
if state == 'whole' then
	local own = 'b1:' .. id .. ':'
	local since = sub(v, 1, #own) == own and string.match(sub(v, #own + 1), '^%d+:')
	if since then
		call('SET', k.L, own .. since .. owner, 'KEEPTTL')
		return 1
	end
elseif state == 'shared' then
	local held = call('HGET', k.i, id)
	local deadline = held and call('ZSCORE', k.s, id)
	if deadline and tonumber(deadline) > micros() then
		call('HSET', k.i, id, string.match(held, '^[^\t]+\t%d+\t') .. owner)
		return 1
	end
end
return 0
