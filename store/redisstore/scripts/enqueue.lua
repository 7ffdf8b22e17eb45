-- First part of enter.lua: queues a claim behind a single holder of Baton, which is
-- what most attempts on a contended lock come to. It comes before the functions that
-- the rest needs, because Lua creates those again at every call, and that costs more
-- than all that is done here.
if ARGV[7] ~= '' and ARGV[8] == '' and ARGV[10] == '' then
	local v = redis.pcall('GET', KEYS[1])
	local id = ARGV[1]
	local left = type(v) == 'string' and string.sub(v, 1, 3) == 'b1:' and string.sub(v, 4, 4) ~= '~'
		and string.sub(v, 4, #id + 4) ~= id .. ':' and redis.call('PTTL', KEYS[1])
	if left and left >= 0 and (ARGV[7] == 'q' or redis.call('LLEN', KEYS[4]) < tonumber(string.sub(ARGV[7], 2))) then
		local n = redis.call('INCR', KEYS[2])
		local t = redis.call('TIME')
		-- As in state.lua, the lifetime of a position begins with a number that is
		-- hardly slow.
		if n >= 1e15 and n % 131072 ~= 0 and t[1] * 1000000 + t[2] - n <= 20000 then
			local entry = string.format('%.0f', n) .. '\t' .. id .. '\t' .. ARGV[3] .. '\t' .. ARGV[5] .. '\t' .. ARGV[6] .. '\t' .. ARGV[2]
			if redis.call('RPUSH', KEYS[4], entry) == 1 or n % 16 == 0 then
				redis.call('EXPIRE', KEYS[4], 60)
			end
			return {2, n, 0, left}
		end
		-- T is slow, used up or gone. The next script that draws a number must see
		-- that, too.
		redis.call(n < 1e15 and 'DEL' or 'DECR', KEYS[2])
	end
end
