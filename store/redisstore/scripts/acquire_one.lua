-- acquireOne acquires an exclusive lock that is free and has no waiters. It
-- answers the token, or -1: not handled here.
local function acquireOne(lock, T, H, queue, head, ms, tail)
	-- A lock that is free may have waiters: its holder expired, or a foreign
	-- client deleted it. The waiters come first.
	if redis.call('EXISTS', lock, queue) > 0 then
		return -1
	end
	local n = tick(T, H)
	redis.call('SET', lock, head .. num(n) .. tail, 'PX', ms)
	return n
end
