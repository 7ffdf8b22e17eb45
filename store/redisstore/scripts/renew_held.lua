-- Renews a batch of claims that are known to be held, of any kind. It names no key that
-- may be missing while they are held: Cluster refuses that while the slot is moved.
--
-- KEYS  for each claim: lock, shared, info
-- ARGV  1 ttl, ms  then for each claim: id, its token
-- Answers for each claim {0} lost, {1, token} held, {6, error}.

local answers = {}
for n = 1, #KEYS / 3 do
	local k = {L = KEYS[3 * n - 2], s = KEYS[3 * n - 1], i = KEYS[3 * n]}
	local ok, answer = pcall(confirm, k, ARGV[2 * n], tonumber(ARGV[1]), tonumber(ARGV[2 * n + 1]))
	if not ok then
		answers[n] = {6, type(answer) == 'table' and answer.err or tostring(answer)}
	else
		answers[n] = answer and {1, answer} or {0}
	end
end
return answers
