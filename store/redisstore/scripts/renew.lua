-- Renews a batch of exclusive locks that are known to be held.
--
-- KEYS  the locks
-- ARGV  1 ttl, ms  then for each lock the beginning of its value, "b1:<id>:<token>:"
-- Answers for each lock 1: renewed; 0: not held exclusively.

local answers = {}
for n, lock in ipairs(KEYS) do
	local v, own = redis.pcall('GET', lock), ARGV[n + 1]
	if type(v) == 'string' and string.sub(v, 1, #own) == own then
		answers[n] = redis.call('PEXPIRE', lock, ARGV[1])
	else
		answers[n] = 0
	end
end
return answers
