-- Moves what one ID holds to another ID, for another ttl.
--
-- KEYS  1 lock  2 T  3 H  4 queue  5 waiters  6 shared  7 info
-- ARGV  1 id  2 ttl, ms  3 token, "" if the caller does not know it  4 the new
--       id  5 its owner
-- Answers the token; 0: not held.

local k = {L = KEYS[1], T = KEYS[2], H = KEYS[3], q = KEYS[4], w = KEYS[5], s = KEYS[6], i = KEYS[7]}
local id, ms, new, owner = ARGV[1], tonumber(ARGV[2]), ARGV[4], ARGV[5]

local token = confirm(k, new, ms) -- an earlier attempt, whose answer was lost
if token then
	return token
end
token = confirm(k, id, ms, tonumber(ARGV[3]))
if not token then
	return 0
end
if look(k) == 'whole' then
	whole(k, new, owner, token, ms)
	return token
end
local held = string.match(call('HGET', k.i, id), '^[^\t]+\t%d+\t')
call('ZADD', k.s, call('ZSCORE', k.s, id), new)
call('HSET', k.i, new, held .. owner)
call('ZREM', k.s, id)
call('HDEL', k.i, id)
return token
