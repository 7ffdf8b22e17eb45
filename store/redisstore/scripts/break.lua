-- Revokes the claims of all holders of a lock, tells every process, and grants the
-- lock to the next waiters.
--
-- KEYS  1 lock  2 T  3 H  4 queue  5 waiters  6 shared  7 info
-- ARGV  1 the channel that all processes read
-- Answers {number of holders}, or {-1, type}: not a lock.

local k = {L = KEYS[1], T = KEYS[2], H = KEYS[3], q = KEYS[4], w = KEYS[5], s = KEYS[6], i = KEYS[7]}
local state, v = settle(k)
if state == 'other' then
	local t = call('TYPE', k.L)
	return {-1, type(t) == 'table' and t.ok or t}
elseif state ~= 'free' and call('PTTL', k.L) == -1 then
	return {-1, 'string'}
end

-- The published IDs hold nothing any more, so to know them is no use.
local holders = 0
if state == 'whole' then
	holders = 1
	redis.pcall('PUBLISH', ARGV[1], 'l\t' .. string.match(v, '^b1:([^:]*)'))
elseif state == 'foreign' then
	holders = 1
elseif state == 'shared' then
	for _, id in ipairs(call('ZRANGE', k.s, 0, -1)) do
		holders = holders + 1
		redis.pcall('PUBLISH', ARGV[1], 'l\t' .. id)
	end
	call('DEL', k.s, k.i)
end
call('DEL', k.L)
grantWaiters(k)
return {holders}
