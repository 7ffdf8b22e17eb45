-- Turns an exclusive holder into a reader without a gap, and grants the
-- readers at the head of the queue.
--
-- KEYS  1 lock  2 T  3 H  4 queue  5 waiters  6 shared  7 info
-- ARGV  1 id  2 ttl, ms  3 token, "" if the caller does not know it
-- Answers the token; 0: not held; -1: held as permits.

local k = {L = KEYS[1], T = KEYS[2], H = KEYS[3], q = KEYS[4], w = KEYS[5], s = KEYS[6], i = KEYS[7]}
local id, ms = ARGV[1], tonumber(ARGV[2])

local token = confirm(k, id, ms, tonumber(ARGV[3]))
if not token then
	return 0
end
local state, v = look(k)
if state == 'shared' then
	return sub(v, 1, 12) == 'b1:~readers:' and token or -1
end
local owner = string.match(v, '^b1:[^:]*:%d+:(.*)$')
join(k, nil, 'r1', id, owner or '', token, ms)
grantWaiters(k)
return token
