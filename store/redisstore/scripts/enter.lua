-- Grants the lock, or queues the claim, or refuses and returns the holder.
--
-- KEYS  1 lock  2 T  3 H  4 queue  5 waiters  6 shared  7 info
-- ARGV  1 id  2 owner  3 want: x, r1, p2/10  4 ttl, ms  5 claim, ms
--       6 channel of the process  7 "q" to queue, "q3" where at most 3 wait
--       8 "r" to look for the entry in the queue that an earlier attempt may have
--       left  9 text of that entry, or ""
--       10 the token that an earlier attempt was told, or ""
-- Answers {1, token}                           granted
--         {2, ticket, foreign, left ms}        queued
--         {3, value, ttl ms, waiting, info}    refused: held
--         {4, value}                           refused: other capacity
--         {5, type}                            refused: not a lock
--         {6, waiting}                         refused: that many wait already

local k = {L = KEYS[1], T = KEYS[2], H = KEYS[3], q = KEYS[4], w = KEYS[5], s = KEYS[6], i = KEYS[7]}
local id, owner, want, ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- The answer to an earlier attempt was lost, or the client sent it twice.
local token = confirm(k, id, ms, tonumber(ARGV[10]))
if token then
	return {1, token}
end

local state, v = settle(k)
local left = call('PTTL', k.L)
local odd = stranger(k, state, left)
if odd then
	return odd
end

local entry, ticket
if ARGV[8] == 'r' then
	entry, ticket = find(k, id, ARGV[9])
	if entry then
		stay(k, id)
	end
end

if (state == 'free' or state == 'shared') and call('EXISTS', k.q) == 1 then
	grantWaiters(k)
	token = entry and confirm(k, id, ms)
	if token then
		return {1, token}
	end
	state, v = look(k)
	left = call('PTTL', k.L)
end
if entry then
	return waiting(k, ticket)
end

if fits(state, v, want) and call('EXISTS', k.q) == 0 then
	token = tick(k.T, k.H)
	if want == 'x' then
		whole(k, id, owner, token, ms)
	else
		join(k, v, want, id, owner, token, ms)
	end
	return {1, token}
end
if ARGV[7] == '' or differs(state, v, want) then
	return refusal(k, state, v, want, left)
end

ticket = now(k)
local most = tonumber(sub(ARGV[7], 2))
local length = most and call('LLEN', k.q)
if most and length >= most then
	local living, dead = 0, 0
	for first = 0, length - 1, 100 do -- reads no more entries than needed
		for _, e in ipairs(call('LRANGE', k.q, first, first + 99)) do
			local stamp, other = string.match(e, ENTRY)
			if stamp and alive(k, stamp, other, ticket) then
				living = living + 1
			else
				dead = dead + 1
			end
			if living == most then
				return {6, length - dead}
			end
		end
	end
end
entry = num(ticket) .. '\t' .. id .. '\t' .. want .. '\t' .. ARGV[5] .. '\t' .. ARGV[6] .. '\t' .. owner
-- Waiters that never wait for a full refresh do not prolong the queue, so
-- joining does it now and then.
if call('RPUSH', k.q, entry) == 1 or ticket % 16 == 0 then
	call('EXPIRE', k.q, 60)
end
if state == 'shared' then
	return waiting(k, ticket)
end
return {2, ticket, state == 'foreign' and 1 or 0, left}
