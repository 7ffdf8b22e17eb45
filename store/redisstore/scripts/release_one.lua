-- releaseOne releases an exclusive lock and grants it to the head of the queue. own
-- is the beginning of the holder's value. It answers 1: released; 0: not held;
-- -1: not handled here.
local function releaseOne(lock, T, queue, own)
	local v = redis.pcall('GET', lock)
	if type(v) ~= 'string' or string.sub(v, 1, #own) ~= own then
		return 0
	end
	local e = redis.call('LPOP', queue)
	if not e then
		redis.call('DEL', lock)
		return 1
	end
	return grantNext(lock, T, queue, e)
end
