-- Ends any claim, held or waiting, and grants the lock to the waiters that now fit.
--
-- KEYS  1 lock  2 T  3 H  4 queue  5 waiters  6 shared  7 info
-- ARGV  1 id  2 "h" if the claim is known to be held  3 text of its entry in the queue, or ""
-- Answers 1: ended; 0: there was no such claim.

local k = {L = KEYS[1], T = KEYS[2], H = KEYS[3], q = KEYS[4], w = KEYS[5], s = KEYS[6], i = KEYS[7]}
local id = ARGV[1]

evenIfFull(k)
local ended = endHeld(k, id, settle(k)) and 1 or 0
if ended == 0 and ARGV[2] ~= 'h' then
	local entry = find(k, id, ARGV[3])
	if entry then
		call('LREM', k.q, 1, entry)
		call('HDEL', k.w, id)
		ended = 1
	end
end
grantWaiters(k)
return ended
