-- Renews a batch of claims of which it is not known whether they hold or wait.
--
-- KEYS  1 T  2 H  then for each claim: lock, queue, waiters, shared, info
-- ARGV  1 ttl, ms  then for each claim: id, and the text of its entry in the queue,
--       or ""
-- Answers for each claim {0} lost, {1, token} held, {2, …} waiting as in
-- enter.lua, {6, error}.

local ms = tonumber(ARGV[1])

local function refresh(k, id, entry)
	local token = confirm(k, id, ms)
	if token then
		return {1, token}
	end
	evenIfFull(k)
	local found, ticket = find(k, id, entry)
	if not found then
		return {0}
	end
	stay(k, id)
	-- The holder may have expired, or one of another program may have released.
	local state = look(k)
	if state == 'free' or state == 'shared' then
		grantWaiters(k)
		token = confirm(k, id, ms)
		if token then
			return {1, token}
		end
	end
	return waiting(k, ticket)
end

local answers = {}
for n = 1, (#KEYS - 2) / 5 do
	local at, arg = 5 * n - 2, 2 * n
	local k = {T = KEYS[1], H = KEYS[2], L = KEYS[at], q = KEYS[at + 1], w = KEYS[at + 2], s = KEYS[at + 3], i = KEYS[at + 4]}
	local ok, answer = pcall(refresh, k, ARGV[arg], ARGV[arg + 1])
	if not ok then
		answer = {6, type(answer) == 'table' and answer.err or tostring(answer)}
	end
	answers[n] = answer
end
return answers
