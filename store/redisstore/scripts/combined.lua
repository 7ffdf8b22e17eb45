-- Runs several acquires and releases, each as acquire.lua and release.lua
-- would, in the order given.
--
-- KEYS  1 T  2 H  then for each operation: lock, queue
-- ARGV  for each operation: the lock's value before the token, ttl, ms, and the value
--       after it; or the beginning of the holder's value, and "" and "" to release
-- Answers for each operation what its script would, or an error's text.

local answers = {}
for n = 1, #KEYS / 2 - 1 do
	local lock, queue, head, ms, tail = KEYS[2 * n + 1], KEYS[2 * n + 2], ARGV[3 * n - 2], ARGV[3 * n - 1], ARGV[3 * n]
	local ok, answer
	if ms == '' then
		ok, answer = pcall(releaseOne, lock, KEYS[1], queue, head)
	else
		ok, answer = pcall(acquireOne, lock, KEYS[1], KEYS[2], queue, head, ms, tail)
	end
	if not ok then
		answer = type(answer) == 'table' and answer.err or tostring(answer)
	end
	answers[n] = answer
end
return answers
