-- Revokes the claims of all holders of a lock, or of some, tells every process, and
-- grants the lock to the next waiters.
--
-- KEYS  1 lock  2 T  3 H  4 queue  5 waiters  6 shared  7 info
-- ARGV  1 the channel that all processes read  2… the IDs to revoke, or for a lock of
--       another program its value; none: all
-- Answers {number revoked}, or {-1, type}: not a lock.

local k = {L = KEYS[1], T = KEYS[2], H = KEYS[3], q = KEYS[4], w = KEYS[5], s = KEYS[6], i = KEYS[7]}
local state, v = settle(k)
if state == 'other' then
	local t = call('TYPE', k.L)
	return {-1, type(t) == 'table' and t.ok or t}
elseif state ~= 'free' and call('PTTL', k.L) == -1 then
	return {-1, 'string'}
end

local meant = {}
for n = 2, #ARGV do
	meant[ARGV[n]] = true
end
local function revoked(id)
	return #ARGV == 1 or meant[id]
end

-- The published IDs hold nothing any more, so to know them is no use.
local ended = 0
local function tell(id)
	ended = ended + 1
	redis.pcall('PUBLISH', ARGV[1], 'l\t' .. id)
end
if state == 'whole' then
	local id = string.match(v, '^b1:([^:]*)')
	if revoked(id) then
		call('DEL', k.L)
		tell(id)
	end
elseif state == 'foreign' and revoked(v) then
	call('DEL', k.L)
	ended = 1
elseif state == 'shared' then
	for _, id in ipairs(call('ZRANGE', k.s, 0, -1)) do
		if revoked(id) then
			endHeld(k, id, look(k))
			tell(id)
		end
	end
end
if ended > 0 then
	grantWaiters(k)
end
return {ended}
