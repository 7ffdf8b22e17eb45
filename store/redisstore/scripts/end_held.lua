-- endHeld ends what id holds. It answers whether id held. state and v come from
-- settle. The caller grants the lock to the next waiter.
local function endHeld(k, id, state, v)
	local own = 'b1:' .. id .. ':'
	if state == 'whole' and sub(v, 1, #own) == own then
		call('DEL', k.L)
		return true
	elseif state == 'shared' and call('ZSCORE', k.s, id) then
		if call('ZCARD', k.s) == 1 then
			call('DEL', k.L, k.s, k.i)
			return true
		end
		local held = call('HGET', k.i, id)
		call('ZREM', k.s, id)
		call('HDEL', k.i, id)
		less(k, v, held and parse(string.match(held, '^[^\t]+')) or 1)
		return true
	end
end

