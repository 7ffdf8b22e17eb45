-- give releases an exclusive lock and hands it to the head of the queue. own
-- begins the holder's value. It answers 1: released; 0: not held; -1: not that
-- simple.
local function give(lock, T, queue, own)
	local v = redis.pcall('GET', lock)
	if type(v) ~= 'string' or string.sub(v, 1, #own) ~= own then
		return 0
	end
	local e = redis.call('LPOP', queue)
	if not e then
		redis.call('DEL', lock)
		return 1
	end
	return pass(lock, T, queue, e)
end
