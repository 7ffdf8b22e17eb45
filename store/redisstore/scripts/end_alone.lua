-- Ends a claim that is held, and grants nothing: the waiters find the lock free. It names
-- no key that may be missing while the claim is held, as Cluster demands while the slot
-- is moved.
--
-- KEYS  1 lock  and for a claim that is not exclusive  2 shared  3 info
-- ARGV  1 id
-- Answers 1: ended; 0: not held; -1: not handled here.

local k = {L = KEYS[1], s = KEYS[2], i = KEYS[3]}
local state, v = look(k)
if state == 'shared' and not k.s then -- downgraded by a request whose answer never came
	return -1
end
return endHeld(k, ARGV[1], state, v) and 1 or 0
