-- Acquires several locks, of any kind, or none. First it looks at each, removes
-- holders that have expired and grants waiters, as enter.lua does; then it acquires
-- all. If one lock is held, it releases what an earlier attempt has acquired.
--
-- KEYS  1 T  2 H  then for each lock: lock, queue, waiters, shared, info
-- ARGV  for each lock: id, owner, want, ttl in ms, and the token that an earlier
--       attempt was told, or ""
-- Answers {0, token…} or, about the nth lock, {n, …} as in refuse.lua.

local wanted = {}
for n = 1, #ARGV / 5 do
	local at, arg = 5 * n - 2, 5 * n - 4
	wanted[n] = {
		T = KEYS[1], H = KEYS[2], L = KEYS[at], q = KEYS[at + 1], w = KEYS[at + 2], s = KEYS[at + 3], i = KEYS[at + 4],
		id = ARGV[arg], owner = ARGV[arg + 1], want = ARGV[arg + 2], ms = tonumber(ARGV[arg + 3]), told = tonumber(ARGV[arg + 4]),
	}
end

-- obstacle answers why k cannot be granted, nothing if it can.
local function obstacle(k)
	k.state, k.v = look(k)
	if k.state ~= 'free' then
		k.token = confirm(k, k.id, k.ms, k.told) -- by an earlier attempt, whose answer was lost
		if k.token then
			return
		end
		k.state, k.v = settle(k)
		local odd = stranger(k, k.state, call('PTTL', k.L))
		if odd then
			return odd
		end
	end
	local queued = call('EXISTS', k.q) == 1
	if queued and (k.state == 'free' or k.state == 'shared') then
		grantWaiters(k)
		k.state, k.v = look(k)
		queued = call('EXISTS', k.q) == 1
	end
	if queued or not fits(k.state, k.v, k.want) then
		return refusal(k, k.state, k.v, k.want, call('PTTL', k.L))
	end
end

for n, k in ipairs(wanted) do
	local why = obstacle(k)
	if why then
		for _, other in ipairs(wanted) do
			if endHeld(other, other.id, settle(other)) then
				grantWaiters(other)
			end
		end
		table.insert(why, 1, n)
		return why
	end
end

local answer = {0}
for n, k in ipairs(wanted) do
	if not k.token then
		k.token = tick(k.T, k.H)
		if k.want == 'x' then
			whole(k, k.id, k.owner, k.token, k.ms)
		else
			join(k, k.v, k.want, k.id, k.owner, k.token, k.ms)
		end
	end
	answer[n + 1] = k.token
end
return answer
