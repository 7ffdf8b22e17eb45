-- grantNext grants an exclusive lock, which its holder releases, to e: the entry
-- that was popped off the queue's head. e must be an exclusive waiter that has
-- joined lately. It answers 1: granted; -1: not handled here, and e is back at the
-- queue's head. The grant is valid even if this user may not publish it: the waiter
-- finds it at its next poll.
local function grantNext(lock, T, queue, e)
	local stamp, id, ms, channel, owner = string.match(e, '^(%d+)\t([^\t]+)\tx\t(%d+)\t([^\t]+)\t(.*)$')
	if stamp then
		local n = redis.call('INCR', T)
		if n >= 1e15 and n % 131072 ~= 0 then
			if tonumber(stamp) + WAITER > n then
				local token = string.format('%.0f', n)
				redis.call('SET', lock, 'b1:' .. id .. ':' .. token .. ':' .. owner, 'PX', ms)
				redis.pcall('PUBLISH', channel, 'g\t' .. id .. '\t' .. token .. '\t' .. ms)
				return 1
			end
		else
			-- T is gone or used up. The next script that draws a number must see that, too.
			redis.call(n < 1e15 and 'DEL' or 'DECR', T)
		end
	end
	redis.call('LPUSH', queue, e)
	redis.call('EXPIRE', queue, 60) -- the pop may have deleted the key
	return -1
end
