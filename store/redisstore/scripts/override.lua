-- Keeps the overrides of limits: see limits.Overrider.
--
-- KEYS  1 the hash of overrides, by the key of the limit
-- ARGV  1 the key of the limit, or '' to list them, 2 its N, period and burst, with a
--       space behind each, 3 µs to keep it for, 0 to remove it, 4 how many there may be
-- Answers {1}, or {0} if there are as many others; a list is {1, now, key, text, …}; or it is
-- {2, type of what is there instead of a hash}.

local call, find, format = redis.call, string.find, string.format
local K, key, keep = KEYS[1], ARGV[1], tonumber(ARGV[3])

local all = redis.pcall('HGETALL', K)
if all.err then
	if not find(all.err, 'WRONGTYPE', 1, true) then
		return all
	end
	local t = call('TYPE', K)
	return {2, type(t) == 'table' and t.ok or t}
end
local t = call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])

local function lasts(text)
	local ends = tonumber(string.match(text, ' (%d+)$'))
	return ends and ends > now
end

if key == '' then
	local answer = {1, format('%.0f', now)}
	for i = 1, #all, 2 do
		if lasts(all[i + 1]) then
			answer[#answer + 1], answer[#answer + 2] = all[i], all[i + 1]
		end
	end
	return answer
elseif keep == 0 then
	call('HDEL', K, key)
	return {1}
end
local others = 0
for i = 1, #all, 2 do
	if all[i] == key then
		-- It is replaced.
	elseif lasts(all[i + 1]) then
		others = others + 1
	else
		call('HDEL', K, all[i])
	end
end
if others >= tonumber(ARGV[4]) then
	return {0}
end
call('HSET', K, key, ARGV[2] .. format('%.0f', now + keep))
local ms = math.ceil(keep / 1000)
if call('PTTL', K) < ms then
	call('PEXPIRE', K, format('%.0f', ms))
end
return {1}
