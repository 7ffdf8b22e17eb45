-- stranger answers {5, type} if what the key has is not a lock. left is its PTTL.
local function stranger(k, state, left)
	if state == 'other' then
		local t = call('TYPE', k.L)
		return {5, type(t) == 'table' and t.ok or t}
	elseif left == -1 then
		return {5, 'string'}
	end
end

-- differs says whether the lock is shared by holders with another capacity.
local function differs(state, v, want)
	local _, _, kind = parse(want)
	return state == 'shared' and kind and sub(v, 1, #kind) ~= kind
end

-- refusal is {4, value}, another capacity, or {3, value, ttl ms, waiting, info}.
local function refusal(k, state, v, want, left)
	if differs(state, v, want) then
		return {4, v}
	end
	local info = ''
	if state == 'shared' then
		local holder = call('ZRANGE', k.s, -1, -1)[1]
		info = holder and call('HGET', k.i, holder) or ''
	end
	return {3, v or '', left, call('LLEN', k.q), info}
end

